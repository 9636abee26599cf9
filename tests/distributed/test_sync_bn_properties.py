# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whatever the shapes, shares and groups: float64 BatchNorm, within bounds."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    bn_group,
    kernels,
    pool_running_stats,
    resolve_bn_groups,
)
from mmdet_megdet.sync_bn.kernels import blocks
from tests.distributed.parity import Case, parity
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import run_threads


def assert_parity(world_size, case):
    for errors in run_threads(parity, world_size, case):
        assert all(error <= 1 for error in errors.values()), errors


LAYOUTS = {
    'contiguous': None,
    'channels_last': lambda x: x.contiguous(memory_format=torch.channels_last),
    'transposed': lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    'strided': lambda x: x.repeat_interleave(2, 1)[:, ::2],
}


@st.composite
def cases(draw):
    ranks = draw(st.sampled_from([2, 3, 4]))
    world_size = ranks * draw(st.sampled_from([1, 2]))
    shares = draw(
        st.lists(
            st.integers(0, 4), min_size=world_size, max_size=world_size
        ).filter(any)
    )
    spatial = draw(
        st.sampled_from([(), (1,), (7,), (1, 1), (4, 5), (3, 7), (2, 3, 2)])
    )
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    if len(spatial) != 2:
        layout = 'contiguous'
    dtype = draw(
        st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
    )
    # Half formats have no digits left for a spread of 1 about 1000.
    means = [0.0, -3.0, 1000.0] if dtype == torch.float32 else [0.0, -3.0]
    return world_size, Case(
        shares=tuple(shares),
        spatial=spatial,
        mean=draw(st.sampled_from(means)),
        dtype=dtype,
        layer=dict(
            eps=draw(st.sampled_from([1e-5, 1e-3])),
            momentum=draw(st.sampled_from([0.1, 1.0, None])),
            affine=draw(st.booleans()),
            track_running_stats=draw(st.booleans()),
        ),
        channels=draw(st.sampled_from([1, 2, 3, 5, 13])),
        layout=LAYOUTS[layout],
        constant=draw(st.booleans()),
        ranks_per_group=ranks,
    )


@settings(max_examples=30 if kernels.interpreted() else 150)
@given(cases(), st.sampled_from([1, 64, 1 << 20]))
def test_parity(drawn, block):
    world_size, case = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, 'CPU_BLOCK_ELEMENTS', block)
        assert_parity(world_size, case)


@pytest.mark.parametrize('world_size', [16, 64, 128])
def test_many_ranks(world_size):
    shares = tuple(rank % 3 for rank in range(world_size))
    for ranks_per_group in (None, 8):
        assert_parity(
            world_size,
            Case(
                shares,
                spatial=(3, 3),
                mean=100.0,
                ranks_per_group=ranks_per_group,
            ),
        )


def layout_and_pooling(rank, world_size):
    layer = MegDetSyncBN(3, bn_size=32)
    resolve_bn_groups(layer, 4)
    layer(torch.full((4, 3, 2, 2), float(rank // 8)))
    alone = layer.running_mean.clone()
    members = dist.get_process_group_ranks(
        bn_group(layer.ranks_per_group, alone.device)
    )
    pool_running_stats(layer)
    return members, alone, layer.running_mean, layer.running_var


@pytest.mark.parametrize('world_size', [16, 64, 128])
def test_groups_and_pooling_of_many_ranks(world_size):
    results = run_threads(layout_and_pooling, world_size)
    levels = torch.arange(world_size // 8).double()
    # momentum 0.1, from mean 0 and variance 1; groups are constant.
    mean = 0.1 * levels.mean().item()
    for rank, (members, alone, pooled_mean, pooled_var) in enumerate(results):
        first = rank // 8 * 8
        assert members == list(range(first, first + 8))
        assert alone.tolist() == pytest.approx([0.1 * (rank // 8)] * 3)
        assert pooled_mean.tolist() == pytest.approx([mean] * 3, rel=1e-6)
        assert pooled_var.tolist() == pytest.approx([0.9] * 3, rel=1e-6)


def train_a_step(rank, world_size, channels):
    layer = MegDetSyncBN(channels)
    x = torch.randn(2, channels, 3, 3, requires_grad=True)
    layer(x).sum().backward()


@pytest.mark.parametrize('channels', [1, 13, 64])
@pytest.mark.parametrize('world_size', [2, 8, 64])
def test_what_a_rank_sends_does_not_grow_with_the_ranks(
    channels, world_size, monkeypatch
):
    sent = Counter()
    all_reduce = dist.all_reduce

    def spy(tensor, *args, **kwargs):
        sent[tensor.numel() * tensor.element_size()] += 1
        return all_reduce(tensor, *args, **kwargs)

    monkeypatch.setattr(dist, 'all_reduce', spy)
    run_threads(train_a_step, world_size, channels)
    # Once forward and once backward on each rank; the group's first sum.
    assert sent == {
        8: world_size,
        8 * (2 * channels + 1): world_size,
        8 * (2 * channels): world_size,
    }


def check_gradients(rank, world_size, weighted):
    """Central differences of a function of all ranks' outputs."""
    generator = torch.Generator().manual_seed(0)
    shares = [2, 0, 3][:world_size]
    shape = (sum(shares), 2, 2, 2)
    x_all = torch.randn(shape, dtype=torch.double, generator=generator)
    target = torch.randn(shape, dtype=torch.double, generator=generator)
    layer = MegDetSyncBN(2, affine=weighted).double()
    if weighted:
        with torch.no_grad():
            layer.weight.uniform_(0.5, 2, generator=generator)

    def loss(x):
        own = x.split(shares)[rank], target.split(shares)[rank]
        return (layer(own[0]).sin() * own[1]).sum()

    def total(x):
        with torch.no_grad():
            value = loss(x)
            dist.all_reduce(value)
        return value.item()

    x = x_all.clone().requires_grad_()
    loss(x).backward()
    gradient = x.grad
    dist.all_reduce(gradient)

    step = 1e-6
    numeric = torch.zeros_like(x_all)
    for index in range(x_all.numel()):
        moved = x_all.clone().view(-1)
        moved[index] += step
        above = total(moved.view(shape))
        moved[index] -= 2 * step
        below = total(moved.view(shape))
        numeric.view(-1)[index] = (above - below) / (2 * step)
    return (gradient - numeric).abs().max().item()


@pytest.mark.parametrize('weighted', [True, False])
def test_gradients_across_ranks_by_central_differences(weighted):
    # Rounding of the differences: about 2^-53 * 10 / 1e-6; their third-order
    # term is far smaller.
    for error in run_ranks(check_gradients, 3, weighted):
        assert error <= 1e-8
