# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups on real ranks: statistics, process groups, pooling."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    bn_group,
    group_timeout,
    pool_running_stats,
    resolve_bn_groups,
)
from tests.distributed.ranks import run_ranks

IMAGES = 2


def whole_batch(world_size):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(world_size * IMAGES, 3, 4, 4, generator=generator).double()
    return x + torch.arange(len(x)).view(-1, 1, 1, 1)


def normalise(rank, world_size, bn_size):
    layer = MegDetSyncBN(3, bn_size=bn_size).double()
    resolve_bn_groups(layer, IMAGES)
    x = whole_batch(world_size).split(IMAGES)[rank].requires_grad_()
    y = layer(x)
    y.pow(3).sum().backward()
    return y.detach(), x.grad, layer.running_mean, layer.running_var


@pytest.mark.parametrize('bn_size', [2, 4, 8, None])
def test_statistics_are_those_of_the_group(bn_size):
    world_size = 4
    size = bn_size or world_size * IMAGES
    results = run_ranks(normalise, world_size, bn_size)
    groups = whole_batch(world_size).split(size)
    for number, images in enumerate(groups):
        plain = nn.BatchNorm2d(3).double()
        images.requires_grad_()
        expected = plain(images)
        expected.pow(3).sum().backward()
        ranks = size // IMAGES
        own = results[number * ranks : (number + 1) * ranks]
        # float64 throughout.
        close = dict(rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(
            torch.cat([r[0] for r in own]), expected, **close
        )
        torch.testing.assert_close(
            torch.cat([r[1] for r in own]), images.grad, **close
        )
        for _, _, mean, var in own:
            torch.testing.assert_close(mean, plain.running_mean, **close)
            torch.testing.assert_close(var, plain.running_var, **close)


def group_facts(rank, world_size):
    model = nn.Sequential(
        MegDetSyncBN(3, bn_size=8),
        MegDetSyncBN(3, bn_size=4),
        MegDetSyncBN(3),
        MegDetSyncBN(3, bn_size=4),
        MegDetSyncBN(3, bn_size=2),
    )
    before = dist.distributed_c10d._world.group_count
    counts = resolve_bn_groups(model, IMAGES)
    made = dist.distributed_c10d._world.group_count - before
    device = torch.device('cpu')
    groups = [bn_group(layer.ranks_per_group, device) for layer in model]
    copied = copy.deepcopy(model)
    return dict(
        counts=counts,
        made=made,
        ranks=[g and dist.get_process_group_ranks(g) for g in groups],
        shared=groups[1] is groups[3] and groups[0] is groups[2],
        copied=[bn_group(c.ranks_per_group, device) is g for c, g in zip(
            copied, groups, strict=True
        )],
        timeouts={
            group_timeout(g, device) for g in groups if g is not None
        },
        default=any(g is dist.group.WORLD for g in groups),
    )  # fmt: skip


def test_process_groups_are_made_once_per_size():
    for rank, facts in enumerate(run_ranks(group_facts, 4)):
        pair = [0, 1] if rank < 2 else [2, 3]
        everyone = [0, 1, 2, 3]
        assert facts['ranks'] == [everyone, pair, everyone, pair, None]
        assert facts['counts'] == {4: 2, 2: 2, 1: 1}
        # Two groups of two ranks and one of four.
        assert facts['made'] == 3
        assert facts['shared']
        assert facts['copied'] == [True] * 5
        assert facts['timeouts'] == {timedelta(seconds=90)}
        assert not facts['default']


def errors(rank, world_size):
    messages = []
    layer = MegDetSyncBN(3, bn_size=4)
    x = torch.randn(2, 3, 4, 4)
    for call in (
        lambda: layer(x),
        lambda: resolve_bn_groups(layer, 3),
        lambda: bn_group(3, x.device),
    ):
        try:
            call()
        except ValueError as error:
            messages.append(str(error))
    layer.eval()(x)
    return messages


def test_every_rank_is_told_what_is_wrong():
    for unresolved, indivisible, other_job in run_ranks(errors, 2):
        assert 'bn_size=4 counts images' in unresolved
        assert 'SyncBNGroupHook' in unresolved
        assert 'resolve_bn_groups(model' in unresolved
        assert 'nearest BN sizes are 3 or 6;' in indivisible
        assert 'resolved for another job' in other_job


def noisy(rank, features, seed):
    generator = torch.Generator().manual_seed(seed * 100 + rank)
    layer = MegDetSyncBN(features)
    layer.running_mean.normal_(3, 2, generator=generator)
    layer.running_var.uniform_(0.5, 2, generator=generator)
    layer.num_batches_tracked.fill_(7)
    return layer


def pool(rank, world_size):
    model = nn.Sequential(noisy(rank, 3, 1), nn.ReLU(), noisy(rank, 5, 2))
    ema = noisy(rank, 4, 3)
    untracked = MegDetSyncBN(3, track_running_stats=False)
    reduced = []
    all_reduce = dist.all_reduce

    def spy(tensor, **kwargs):
        reduced.append((tensor.numel(), tensor.dtype))
        return all_reduce(tensor, **kwargs)

    dist.all_reduce = spy
    pool_running_stats(model, nn.Sequential(ema, untracked))
    dist.all_reduce = all_reduce
    return [model.state_dict(), ema.state_dict()], reduced


@pytest.mark.parametrize('world_size', [2, 3, 8])
def test_pooling(world_size):
    results = run_ranks(pool, world_size)
    for features, seed, place in ((3, 1, '0.'), (5, 2, '2.'), (4, 3, '')):
        layers = [noisy(r, features, seed) for r in range(world_size)]
        means = torch.stack([v.running_mean for v in layers]).double()
        variances = torch.stack([v.running_var for v in layers]).double()
        expected = means.mean(0), variances.mean(0)
        for states, _ in results:
            state = states[place == '']
            got = state[f'{place}running_mean'], state[f'{place}running_var']
            for value, true in zip(got, expected, strict=True):
                # One rounding to float32.
                assert ((value - true).abs() <= 2.0**-24 * true.abs()).all()
            assert state[f'{place}num_batches_tracked'].item() == 7
    first, _ = results[0]
    for states, reduced in results:
        for state, other in zip(states, first, strict=True):
            for key, value in state.items():
                assert torch.equal(value, other[key]), key
        # 12 channels: means, variances; three counters.
        assert reduced == [(2 * 12 + 3, torch.float64)]


def pool_equals(rank, world_size):
    generator = torch.Generator().manual_seed(0)
    layer = MegDetSyncBN(1000)
    # Many magnitudes, means far larger than deviations among them.
    scale = 10.0 ** torch.randint(-6, 7, (2, 1000), generator=generator)
    layer.running_mean.normal_(generator=generator).mul_(scale[0])
    layer.running_var.uniform_(0, 1, generator=generator).mul_(scale[1])
    before = copy.deepcopy(layer.state_dict())
    pool_running_stats(layer)
    return all(
        torch.equal(v, before[k]) for k, v in layer.state_dict().items()
    )


@pytest.mark.parametrize('world_size', [2, 3, 7])
def test_pooling_leaves_equal_buffers_alone(world_size):
    assert run_ranks(pool_equals, world_size) == [True] * world_size
