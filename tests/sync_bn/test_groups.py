# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From images to ranks: arithmetic, and what the user is told."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.recipe import ranks_per_group
from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 64))
@example(32, 4, 128)
@example(32, 2, 16)
@example(4, 4, 8)
@example(12, 4, 6)
def test_a_group_holds_its_images_or_is_refused(
    bn_size, images_per_gpu, world_size
):
    possible = [
        ranks
        for ranks in range(1, world_size + 1)
        if ranks * images_per_gpu == bn_size and world_size % ranks == 0
    ]
    if possible:
        (expected,) = possible
        assert ranks_per_group(bn_size, images_per_gpu, world_size) == expected
    else:
        with pytest.raises(ValueError, match=f'bn_size={bn_size} '):
            ranks_per_group(bn_size, images_per_gpu, world_size)


def test_no_size_takes_all_ranks():
    assert ranks_per_group(None, 4, 6) == 6


@pytest.mark.parametrize(
    ('bn_size', 'images_per_gpu', 'world_size', 'nearest'),
    [
        (32, 4, 4, '16'),  # too few ranks
        (30, 4, 8, '16 or 32'),  # no whole number of ranks
        (20, 4, 8, '16 or 32'),  # five ranks do not divide eight
        (2, 4, 8, '4'),  # less than a rank
    ],
)
def test_refusals_name_the_nearest_sizes(
    bn_size, images_per_gpu, world_size, nearest
):
    with pytest.raises(ValueError, match=f'sizes are {nearest};'):
        ranks_per_group(bn_size, images_per_gpu, world_size)


@pytest.mark.parametrize('bn_size', [0, -4, 2.0, '32', True])
def test_a_size_that_is_no_number_of_images(bn_size):
    with pytest.raises(ValueError, match=f'bn_size={bn_size!r} must be'):
        MegDetSyncBN(4, bn_size=bn_size)


def test_resolving_a_model_in_one_process():
    model = nn.Sequential(
        MegDetSyncBN(3), nn.BatchNorm2d(3), MegDetSyncBN(3, bn_size=4)
    )
    assert resolve_bn_groups(model, images_per_gpu=4) == {1: 2}
    assert [m.bn_size for m in (model[0], model[2])] == [None, 4]
    assert resolve_bn_groups(model, 2, bn_size=None) == {1: 2}
    assert [m.bn_size for m in (model[0], model[2])] == [None, None]


def test_a_refused_size_changes_nothing():
    model = nn.Sequential(MegDetSyncBN(3), MegDetSyncBN(3, bn_size=32))
    with pytest.raises(ValueError, match='nearest BN sizes are 4;'):
        resolve_bn_groups(model, images_per_gpu=4)
    assert [m.ranks_per_group for m in model] == [None, None]
    with pytest.raises(ConfigError, match='images_per_gpu=0 must be'):
        resolve_bn_groups(model, images_per_gpu=0)


def test_one_process_trains_with_an_unresolved_size():
    layer = MegDetSyncBN(3, bn_size=32)
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(layer(x), nn.BatchNorm2d(3)(x))
