# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From images to ranks, in one process; tests/recipe has the arithmetic."""

import pytest
import torch
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups


@pytest.mark.parametrize('bn_size', [0, -4, 2.0, '32', True])
def test_a_size_that_is_no_number_of_images(bn_size):
    with pytest.raises(ConfigError, match=f'bn_size={bn_size!r} must be'):
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
    with pytest.raises(ConfigError, match='nearest BN sizes are 4;'):
        resolve_bn_groups(model, images_per_gpu=4)
    assert [m.ranks_per_group for m in model] == [None, None]
    with pytest.raises(ConfigError, match='images_per_gpu=0 must be'):
        resolve_bn_groups(model, images_per_gpu=0)


def test_one_process_trains_with_an_unresolved_size():
    layer = MegDetSyncBN(3, bn_size=32)
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(layer(x), nn.BatchNorm2d(3)(x))
