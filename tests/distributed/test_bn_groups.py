# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups on several ranks: process groups, refusals, pooling."""

from __future__ import annotations

import copy
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    bn_group,
    group_timeout,
    pool_running_stats,
    resolve_bn_groups,
)
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import run_threads

CPU = torch.device('cpu')


def group_facts(rank, world_size):
    model = nn.ModuleList(
        MegDetSyncBN(3, bn_size=size) for size in (8, 4, None, 4, 2)
    )
    before = dist.distributed_c10d._world.group_count
    counts = resolve_bn_groups(model, images_per_gpu=2)
    made = dist.distributed_c10d._world.group_count - before
    with mock.patch.object(dist, 'all_reduce') as all_reduce:
        groups, again = (
            [bn_group(layer.ranks_per_group, CPU) for layer in layers]
            for layers in (model, copy.deepcopy(model))
        )
    facts = dict(
        counts=counts,
        made=made,
        ranks=[g and dist.get_process_group_ranks(g) for g in groups],
        found_again=groups == again and not all_reduce.called,
        timeouts={group_timeout(g, CPU) for g in groups if g is not None},
        default=any(g is dist.group.WORLD for g in groups),
    )
    # A job that is initialised again gets a group of its own.
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    facts['without_a_job'] = bn_group(None, CPU)
    dist.init_process_group(
        'gloo',
        store=dist.PrefixStore('again', store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=45),
    )
    facts['next_timeout'] = group_timeout(bn_group(None, CPU), CPU)
    return facts


def test_process_groups_are_made_once_per_size():
    for rank, facts in enumerate(run_ranks(group_facts, 4)):
        pair = [0, 1] if rank < 2 else [2, 3]
        everyone = [0, 1, 2, 3]
        assert facts['ranks'] == [everyone, pair, everyone, pair, None]
        assert facts['counts'] == {4: 2, 2: 2, 1: 1}
        # Two groups of two ranks and one of four.
        assert facts['made'] == 3
        assert facts['found_again']
        assert facts['timeouts'] == {timedelta(seconds=90)}
        assert not facts['default']
        assert facts['without_a_job'] is None
        assert facts['next_timeout'] == timedelta(seconds=45)


def refusals(rank, world_size):
    messages = []
    layer = MegDetSyncBN(3, bn_size=4)
    x = torch.randn(2, 3, 4, 4)
    for call in (lambda: layer(x), lambda: bn_group(3, CPU)):
        with pytest.raises(ConfigError) as refused:
            call()
        messages.append(str(refused.value))
    layer.eval()(x)
    return messages


def test_every_rank_is_told_what_is_wrong():
    for unresolved, other_job in run_threads(refusals, 2):
        assert 'bn_size=4 counts images' in unresolved
        assert 'resolve_bn_groups(model' in unresolved
        assert 'resolved for another job' in other_job


def noisy(rank, features, seed):
    generator = torch.Generator().manual_seed(seed * 100 + rank)
    layer = MegDetSyncBN(features)
    layer.running_mean.normal_(3, 2, generator=generator)
    layer.running_var.uniform_(0.5, 2, generator=generator)
    layer.num_batches_tracked.fill_(7)
    return layer


def pool(rank, world_size):
    """A model, and an EMA copy of another size."""
    layers = [noisy(rank, features, features) for features in (3, 5, 4)]
    untracked = MegDetSyncBN(3, track_running_stats=False)
    # The same on all ranks, of many magnitudes.
    equal = noisy(0, 1000, 0)
    for buffer in (equal.running_mean, equal.running_var):
        buffer *= 10.0 ** (torch.arange(1000) % 13 - 6)
    before = copy.deepcopy(equal)
    pool_running_stats(
        nn.Sequential(*layers[:2]), nn.Sequential(layers[2], untracked, equal)
    )
    assert all(map(torch.equal, equal.buffers(), before.buffers()))
    return layers


@pytest.mark.parametrize('world_size', [2, 3, 7])
def test_pooling(world_size, monkeypatch):
    reduced = []
    all_reduce = dist.all_reduce

    def spy(tensor, **kwargs):
        reduced.append((tensor.numel(), tensor.dtype))
        return all_reduce(tensor, **kwargs)

    monkeypatch.setattr(dist, 'all_reduce', spy)
    results = run_threads(pool, world_size)
    for place, features in enumerate((3, 5, 4)):
        layers = [noisy(r, features, features) for r in range(world_size)]
        for name in ('running_mean', 'running_var'):
            buffers = [getattr(layer, name).double() for layer in layers]
            true = torch.stack(buffers).mean(0)
            for pooled in results:
                got = getattr(pooled[place], name)
                # One rounding to float32; the same on all ranks.
                assert ((got - true).abs() <= 2.0**-24 * true.abs()).all()
                assert torch.equal(got, getattr(results[0][place], name))
        assert results[0][place].num_batches_tracked.item() == 7
    # 1012 channels: means, variances; four counters.
    assert reduced == [(2 * 1012 + 4, torch.float64)] * world_size
