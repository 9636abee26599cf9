# Copyright (c) mmdet_megdet contributors. All rights reserved.
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.updates import epoch_layout, unit_of


@st.composite
def cases(draw):
    """Orientations, seed, images of an update and of a unit."""
    unit = draw(st.integers(1, 6))
    total = unit * draw(st.integers(1, 6))
    images = draw(st.integers(total, 8 * total))
    wide = draw(st.floats(0, 1))
    landscape = np.random.RandomState(images).rand(images) < wide
    return landscape, draw(st.integers(0, 2**33)), total, unit


@given(cases(), st.integers(0, 10**6))
def test_an_epoch(case, epoch):
    landscape, seed, total, unit = case
    layout = epoch_layout(landscape, seed, epoch, total, unit)
    assert layout.shape == (len(landscape) // total, total)
    assert len(np.unique(layout)) == layout.size > len(landscape) - total
    assert layout.min() >= 0
    assert layout.max() < len(landscape)
    mixed = np.ptp(landscape[layout].reshape(-1, unit).astype(int), axis=1)
    assert mixed.sum() <= 1
    again = epoch_layout(landscape, seed, epoch, total, unit)
    assert np.array_equal(layout, again)


@given(cases(), st.integers(0, 10**6))
def test_epochs_leave_out_other_images(case, epoch):
    landscape, seed, total, unit = case
    images = len(landscape)
    times = np.zeros(images, int)
    before = set()
    for number in range(epoch, epoch + images):
        layout = epoch_layout(landscape, seed, number, total, unit)
        left_out = set(range(images)) - set(layout.ravel().tolist())
        assert not left_out & before
        before = left_out
        times[list(left_out)] += 1
    assert set(times) == {images % total}


@pytest.mark.parametrize(('images', 'updates'), [(117266, 458), (118287, 462)])
def test_coco(images, updates):
    landscape = np.random.RandomState(0).rand(images) < 0.7
    first = epoch_layout(landscape, 1, 0, 256, 32)
    assert first.shape == (updates, 256)
    others = [
        epoch_layout(landscape, seed, epoch, 256, 32)
        for seed, epoch in [(1, 1), (0, 1), (0, 0)]
    ]
    for other in others:
        # Images that are at the same place: one, on average.
        assert (other == first).sum() < 20
    # Updates are of units of both orientations, in no order.
    shares = landscape[first].mean(1)
    assert 0.6 < shares.mean() < 0.8
    assert shares.std() > 0.1
    assert abs(np.corrcoef(shares[:-1], shares[1:])[0, 1]) < 0.2


def test_numbers_stay_what_they_are():
    """A run goes on under another version of this package, or of numpy."""
    layout = epoch_layout(np.arange(11) % 3 > 0, 7, 2, 4, 2)
    assert layout.tolist() == [[2, 9, 7, 10], [5, 1, 0, 6]]


@pytest.mark.parametrize(
    ('total', 'bn_sizes', 'unit'),
    [
        (256, [32, None, 8], 32),
        (256, [], 32),
        (48, [None], 24),
        (37, [], 1),
        (128, [128], 128),
    ],
)
def test_units(total, bn_sizes, unit):
    assert unit_of(total, bn_sizes) == unit


def test_units_that_do_not_fit():
    with pytest.raises(ConfigError, match='BN sizes 8 and 12'):
        unit_of(24, [8, 12])
