# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups on several ranks: process groups, refusals, pooling."""

import copy
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing import assert_close

from mmdet_megdet import sync_bn
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import MegDetSyncBN, bn_group
from tests.distributed.ranks import run_ranks, run_threads

CPU = torch.device('cpu')


def group_facts(rank, world_size):
    model = nn.ModuleList(
        MegDetSyncBN(3, bn_size=size) for size in (8, 4, None, 4, 2)
    )
    before = dist.distributed_c10d._world.group_count
    counts = sync_bn.resolve_bn_groups(model, images_per_gpu=2)
    made = dist.distributed_c10d._world.group_count - before
    with mock.patch.object(dist, 'all_reduce', None):
        groups, copied = (
            [bn_group(layer.ranks_per_group, CPU) for layer in layers]
            for layers in (model, copy.deepcopy(model))
        )
    assert groups == copied
    assert counts == {4: 2, 2: 2, 1: 1}
    assert made == 3  # two groups of two ranks and one of four
    pair = [0, 1] if rank < 2 else [2, 3]
    members = [g and dist.get_process_group_ranks(g) for g in groups]
    assert members == [[0, 1, 2, 3], pair, [0, 1, 2, 3], pair, None]
    for group in groups[:4]:
        assert group is not dist.group.WORLD
        assert sync_bn.group_timeout(group, CPU) == timedelta(seconds=90)
    # A job that is initialised again gets a group of its own.
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    assert bn_group(None, CPU) is None
    again, timeout = dist.PrefixStore('again', store), timedelta(seconds=45)
    where = dict(store=again, rank=rank, world_size=world_size)
    dist.init_process_group('gloo', timeout=timeout, **where)
    assert sync_bn.group_timeout(bn_group(None, CPU), CPU) == timeout


def test_process_groups_are_made_once_per_size():
    run_ranks(group_facts, 4)


def refusals(rank, world_size):
    layer = MegDetSyncBN(3, bn_size=4)
    x = torch.randn(2, 3, 4, 4)
    with pytest.raises(ConfigError, match=r'(?s)bn_size=4 .*resolve_bn_group'):
        layer(x)
    with pytest.raises(ConfigError, match='resolved for another job'):
        bn_group(3, CPU)
    layer.eval()(x)


def test_every_rank_is_told_what_is_wrong():
    run_threads(refusals, 2)


def pool(rank, world_size):
    """A model, and a copy."""
    generator = torch.Generator().manual_seed(rank)
    norm, equal = MegDetSyncBN(3), MegDetSyncBN(1000)
    norm.running_mean.normal_(3, 2, generator=generator)
    norm.running_var.uniform_(0.5, 2, generator=generator)
    # The same on all ranks, of many magnitudes.
    equal.num_batches_tracked.fill_(7)
    for buffer in (equal.running_mean, equal.running_var):
        buffer.fill_(1 / 3).mul_(10.0 ** (torch.arange(1000) % 13 - 6))
    before = copy.deepcopy([norm.state_dict(), equal.state_dict()])
    untracked = MegDetSyncBN(3, track_running_stats=False)
    sync_bn.pool_running_stats(norm, nn.Sequential(untracked, equal))
    assert_close(equal.state_dict(), before[1], rtol=0, atol=0)
    return before[0], norm.state_dict()


@pytest.mark.parametrize('world_size', [2, 3, 7])
def test_pooling(world_size, monkeypatch):
    reduced = []
    all_reduce = dist.all_reduce

    def spy(tensor, **kwargs):
        reduced.append((tensor.numel(), tensor.dtype))
        return all_reduce(tensor, **kwargs)

    monkeypatch.setattr(dist, 'all_reduce', spy)
    befores, afters = zip(*run_threads(pool, world_size), strict=True)
    for name in ('running_mean', 'running_var'):
        true = torch.stack([b[name].double() for b in befores]).mean(0)
        for after in afters:
            # One rounding to float32, the same on all ranks.
            assert_close(after[name].double(), true, rtol=2.0**-24, atol=0)
            assert torch.equal(after[name], afters[0][name])
    # 1003 channels: means, variances; two counters.
    assert reduced == [(2 * 1003 + 2, torch.float64)] * world_size
