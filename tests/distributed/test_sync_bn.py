# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layer on many ranks against one float64 BatchNorm on one process."""

from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import product
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
)
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.sync_bn import MegDetSyncBN, function, kernels
from mmdet_megdet.sync_bn.kernels import blocks, plain
from tests.distributed.parity import Case, channels_last, parity_of_cases
from tests.distributed.ranks import run_ranks, run_threads

CHANNELS = Case.channels
SHARES = {
    2: [(5, 0), (1, 7), (4, 4)],
    3: [(2, 0, 3)],
    4: [(3, 0, 5, 1), (0, 0, 0, 2)],
    8: [(1, 2, 0, 4, 1, 0, 3, 2), (0, 6, 0, 0, 0, 0, 0, 1)],
}
SPATIAL = [(), (7,), (4, 5), (3, 2, 4), (1,), (1, 1), (3, 7)]
DTYPES = torch.float32, torch.float64, torch.float16, torch.bfloat16
LAYOUTS = {
    'contiguous': torch.clone,
    'channels_last': channels_last,
    'transposed': lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    'strided': lambda x: x.repeat_interleave(2, 1)[:, ::2],
    'odd': lambda x: x.new_empty(1 + x.numel())[1:].view_as(x).copy_(x),
}


def assert_parity(world_size, *cases, run=run_threads):
    for rank, found in enumerate(run(parity_of_cases, world_size, cases)):
        for case, errors in zip(cases, found, strict=True):
            assert all(e <= 1 for e in errors.values()), (rank, case, errors)


@pytest.mark.parametrize('world_size', SHARES)
def test_parity(world_size):
    """Uneven and empty shares, all dimensions, BN groups, far from zero."""
    cases = [
        Case(shares, spatial, mean, layer=layer, ranks_per_group=ranks)
        for shares in SHARES[world_size]
        for spatial in SPATIAL[:4]
        for mean in (0.0, 1000.0)
        for layer in ({}, dict(momentum=None, eps=1e-3))
        for ranks in ([None, 2] if world_size == 4 else [None])
    ]
    assert_parity(world_size, *cases, run=run_ranks)


@st.composite
def any_case(draw):
    def one_of(*values):
        return draw(st.sampled_from(values))

    ranks = one_of(2, 3, 4)
    world_size = ranks * one_of(1, 2)
    share = st.integers(0, 4)
    shares = st.lists(share, min_size=world_size, max_size=world_size)
    dtype = one_of(*DTYPES)
    # Half formats have no digits left for a spread of 1 about 1000.
    far = [3.0] if dtype.itemsize == 2 else [1000.0, 1e6]
    # Rows for the fused CPU kernels, and lengths that cannot be cut.
    long = [] if kernels.interpreted() else [31, 32, 247, 1031, 2048, 2062]
    return world_size, Case(
        shares=tuple(draw(shares.filter(any))),
        spatial=one_of(*SPATIAL, *((length,) for length in long)),
        mean=one_of(0.0, -3.0, *far),
        dtype=dtype,
        layer=dict(
            eps=one_of(1e-5, 1e-3),
            momentum=one_of(0.1, 1.0, None),
            affine=draw(st.booleans()),
            track_running_stats=draw(st.booleans()),
        ),
        channels=one_of(1, 2, 3, 5, 13),
        layout=LAYOUTS[one_of(*LAYOUTS)],
        gradient_layout=LAYOUTS[one_of(*LAYOUTS)],
        expanded=draw(st.booleans()),
        constant=draw(st.booleans()),
        ranks_per_group=ranks,
    )


# Statistics are taken in float32 of half-precision values, under autocast too.
@settings(max_examples=20 if kernels.interpreted() else 200)
@given(any_case(), st.sampled_from([1, 64, 1 << 20]))
@example((2, Case((5, 0), mean=30.0, dtype=torch.bfloat16)), 64)
@example((2, Case((5, 0), mean=30.0, dtype=torch.float16)), 64)
def test_parity_of_any_case(drawn, block):
    with pytest.MonkeyPatch.context() as patch:
        # Long rows would be thousands of blocks.
        if max(drawn[1].spatial, default=0) < blocks.SHORTEST_PIECE:
            patch.setattr(blocks, 'CPU_BLOCK_ELEMENTS', block)
        assert_parity(*drawn)


def test_parity_of_long_rows():
    assert_parity(2, Case((1, 2), (15200,), mean=1000.0))


@pytest.mark.parametrize('ranks_per_group', [None, 8])
def test_parity_on_many_ranks(ranks_per_group):
    shares = tuple(rank % 3 for rank in range(128))
    case = Case(shares, (3, 3), 100.0, ranks_per_group=ranks_per_group)
    assert_parity(128, case)


def train_a_step(rank, world_size):
    dtype = [torch.float32, torch.half][rank % 2]
    x = torch.randn(3 * (rank % 2), 5, 4, 4, dtype=dtype)
    layer = MegDetSyncBN(5)
    # Whether a rank's input needs a gradient is its own affair.
    layer(x.requires_grad_(rank % 2 == 1)).sum().backward()
    layer.eval()(x)


@pytest.mark.parametrize('world_size', [2, 16])
def test_one_collective_each_way_of_the_same_kind_on_every_rank(
    world_size, monkeypatch
):
    sent = Counter()
    all_reduce = dist.all_reduce

    def spy(tensor, *args, **kwargs):
        assert kwargs['group'] is not dist.group.WORLD
        sent[tensor.numel(), tensor.dtype] += 1
        return all_reduce(tensor, *args, **kwargs)

    monkeypatch.setattr(dist, 'all_reduce', spy)
    run_threads(train_a_step, world_size)
    # The group's first sum; forward's, backward's, whatever the ranks.
    numbers = 1, 2 * 5 + 1, 2 * 5
    assert sent == {(n, torch.float64): world_size for n in numbers}


def order_in_backward(rank, world_size):
    events = []

    def spied(work, event):
        def spy(*args):
            result = work(*args)
            events.append(event)
            return spied(result, 'there') if event == 'sent' else result

        return spy

    y = MegDetSyncBN(3)(torch.randn(2, 3, 4, 4, requires_grad=True))
    for place, name, event in (
        (function, 'start_all_reduce', 'sent'),
        (plain, 'begin_input_gradient', 'begun'),
        (plain, 'finish_input_gradient', 'finished'),
    ):
        setattr(place, name, spied(getattr(place, name), event))
    y.sum().backward()
    assert events == ['sent', 'begun', 'there', 'finished']


def test_the_gradient_is_begun_while_the_sums_are_on_their_way():
    run_ranks(order_in_backward, 2)


def fails(rank, world_size):
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        wait = function.start_all_reduce(torch.zeros(2), group, None)
        with pytest.raises(RuntimeError, match=r'Timed out|closed by peer'):
            wait()


def test_the_error_of_a_collective_is_raised_by_the_wait():
    run_ranks(fails, 2)


def step(rank, world_size, images):
    layer = Case(()).new_layer()
    x = torch.full((images[rank], CHANNELS, 1, 1), 1e4 / 3, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    return layer, y, x.grad


def test_no_image_on_any_rank_changes_nothing():
    before = Case(()).new_layer().state_dict()
    for layer, _, dx in run_threads(step, 2, (0, 0)):
        torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
        assert dx.shape == (0, CHANNELS, 1, 1)
        assert not layer.weight.grad.any()
        assert not layer.bias.grad.any()


def test_a_single_value_normalises_to_the_bias():
    (layer, y, dx), _ = run_threads(step, 2, (1, 0))
    assert torch.equal(y[0, :, 0, 0], layer.bias)
    assert not dx.any()
    assert layer.running_var.tolist() == [1.0] * CHANNELS
    assert layer.running_mean.tolist() == pytest.approx([1e3 / 3] * CHANNELS)
    assert layer.num_batches_tracked.item() == 1


def recomputed(rank, world_size, use_reentrant):
    x = torch.randn(rank + 1, CHANNELS, 4, 4)
    results, seen = [], []
    again = partial(checkpoint, use_reentrant=use_reentrant)
    for run, observer in (
        (nn.Module.__call__, None),
        (nn.Module.__call__, seen.append),
        (again, seen.append),
    ):
        layer, leaf = Case(()).new_layer(), x.clone().requires_grad_()
        layer.observer = observer
        run(layer, leaf).square().sum().backward()
        buffers = layer.state_dict().values()
        results.append([leaf.grad, layer.weight.grad, *buffers])
    assert [call.recomputed for call in seen] == [False, False, True]
    # Backward reports to the forward that built its graph.
    first, again = (1, 2) if use_reentrant else (2, 1)
    assert [len(call.collectives) for call in seen] == [2, first, again]
    return results


@pytest.mark.parametrize('use_reentrant', [True, False])
def test_recomputation_repeats_the_forward_without_its_side_effects(
    use_reentrant,
):
    for once, observed, again in run_threads(recomputed, 2, use_reentrant):
        assert all(map(torch.equal, once, observed))
        assert all(map(torch.equal, once, again))
        assert again[-1].item() == 1


def under_fake_tensors(rank, world_size):
    """Raises where the layer looks at a tensor's value on the host."""
    dist.all_reduce = lambda *args, **kwargs: mock.Mock()
    for momentum, dtype, layout in product(
        (0.1, None),
        (torch.float32, torch.half),
        (torch.contiguous_format, torch.channels_last),
    ):
        with FakeTensorMode():
            layer = MegDetSyncBN(CHANNELS, momentum=momentum)
            x = torch.empty(2, CHANNELS, 4, 4, dtype=dtype)
            x = x.to(memory_format=layout).requires_grad_()
            layer(x).sum().backward()
            assert x.grad.shape == x.shape
            with pytest.raises(DataDependentOutputException):
                layer.running_mean[0].item()


def test_nothing_waits_for_the_host():
    run_ranks(under_fake_tensors, 2)
