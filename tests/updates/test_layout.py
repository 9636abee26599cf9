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
def test_epochs(case, first):
    landscape, seed, total, unit = case
    images = len(landscape)
    times = np.zeros(images, int)
    before = set()
    for epoch in range(first, first + images):
        layout = epoch_layout(landscape, seed, epoch, total, unit)
        assert layout.shape == (images // total, total)
        mixed = np.ptp(landscape[layout].reshape(-1, unit).astype(int), axis=1)
        assert mixed.sum() <= 1
        seen = set(layout.ravel().tolist())
        assert len(seen) == layout.size
        # Each epoch leaves out other images, each as often as the others.
        left_out = set(range(images)) - seen
        assert len(left_out) == images % total
        assert not left_out & before
        before = left_out
        times[list(left_out)] += 1
    assert set(times) == {images % total}
    again = epoch_layout(landscape, seed, epoch, total, unit)
    assert np.array_equal(layout, again)


def test_numbers_stay_what_they_are():
    """A run goes on under another version of this package, or of numpy."""
    layout = epoch_layout(np.arange(11) % 3 > 0, 7, 2, 4, 2)
    assert layout.tolist() == [[2, 9, 7, 10], [5, 1, 0, 6]]


def test_units():
    for total, bn_sizes, unit in (
        (256, [32, None, 8], 32),
        (256, [], 32),
        (48, [None], 24),
        (37, [], 1),
        (128, [128], 128),
    ):
        assert unit_of(total, bn_sizes) == unit
    with pytest.raises(ConfigError, match='BN sizes 8 and 12'):
        unit_of(24, [8, 12])
