# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From images to ranks: arithmetic, and what the user is told."""

from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN, groups, resolve_bn_groups
from mmdet_megdet.sync_bn.groups import group_timeout, ranks_per_group


@pytest.mark.parametrize(
    ('bn_size', 'images_per_gpu', 'world_size', 'ranks'),
    [
        (32, 4, 8, 8),
        (32, 4, 128, 8),
        (32, 8, 8, 4),
        (32, 2, 16, 16),
        (4, 4, 8, 1),
        (32, 32, 8, 1),
        (12, 4, 6, 3),
        (None, 4, 6, 6),
        (None, 4, 1, 1),
    ],
)
def test_ranks_per_group(bn_size, images_per_gpu, world_size, ranks):
    assert ranks_per_group(bn_size, images_per_gpu, world_size) == ranks


@pytest.mark.parametrize(
    ('bn_size', 'images_per_gpu', 'world_size', 'nearest'),
    [
        (32, 4, 4, '16'),  # too few ranks
        (32, 4, 1, '4'),
        (30, 4, 8, '16 or 32'),  # no whole number of ranks
        (20, 4, 8, '16 or 32'),  # five ranks do not divide eight
        (2, 4, 8, '4'),  # less than a rank
        (24, 4, 12, None),  # divides: six ranks
    ],
)
def test_refusals_name_the_nearest_sizes(
    bn_size, images_per_gpu, world_size, nearest
):
    if nearest is None:
        assert ranks_per_group(bn_size, images_per_gpu, world_size) == 6
        return
    with pytest.raises(ValueError, match=f'sizes are {nearest};') as error:
        ranks_per_group(bn_size, images_per_gpu, world_size)
    assert f'bn_size={bn_size} ' in str(error.value)


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 64))
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
    with pytest.raises(ValueError, match='images_per_gpu=0 must be'):
        resolve_bn_groups(model, images_per_gpu=0)


def test_one_process_trains_with_an_unresolved_size():
    layer = MegDetSyncBN(3, bn_size=32)
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(layer(x), nn.BatchNorm2d(3)(x))


class Backend:
    """A process group whose backend has certain options."""

    def __init__(self, **options):
        self.backend = SimpleNamespace(**options)

    def _get_backend(self, device):
        return self.backend


@pytest.mark.parametrize(
    ('group', 'timeout'),
    [
        (
            Backend(options=SimpleNamespace(_timeout=timedelta(9))),
            timedelta(9),
        ),
        (Backend(options=SimpleNamespace()), None),
        (Backend(options=None), None),
        (Backend(), None),
        (object(), None),
    ],
)
def test_timeouts_of_backends_with_and_without_options(group, timeout):
    assert group_timeout(group, torch.device('cpu')) == timeout


class Options:
    def __init__(self):
        self.config = SimpleNamespace(max_ctas=None)
        self._timeout = timedelta(seconds=600)


@pytest.mark.parametrize('timeout', [timedelta(seconds=90), None])
def test_nccl_gets_a_small_communicator(timeout):
    nccl = SimpleNamespace(Options=Options)
    with (
        mock.patch.object(dist, 'ProcessGroupNCCL', nccl, create=True),
        mock.patch.object(dist, 'get_backend_config') as backends,
    ):
        backends.return_value = 'cpu:gloo,cuda:nccl'
        options = groups._small(timeout)
        assert options.config.max_ctas == groups.MOST_CTAS
        assert options._timeout == (timeout or timedelta(seconds=600))
        # An NCCL without such settings, and another backend.
        nccl.Options = SimpleNamespace
        assert groups._small(timeout) is None
        backends.return_value = 'cpu:gloo'
        assert groups._small(timeout) is None
