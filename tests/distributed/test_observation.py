# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a layer tells its observer: the numbers, and only the numbers."""

import time

import torch
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_ranks

# float64 sums of float32 numbers: rounding of some ulp of float32 at most,
# from the block sums (tests/distributed/parity.py derives the bounds).
TOLERANCE = dict(rtol=1e-6, atol=1e-6)


def batch(rank):
    """Rank 1 has no image."""
    generator = torch.Generator().manual_seed(rank)
    images = (3, 0, 2)[rank]
    return torch.randn(images, 4, 5, 6, generator=generator) * 3 + rank


def observed(rank, world_size):
    seen = []
    outputs = []
    for observer in (None, seen.append):
        layer = MegDetSyncBN(4)
        layer.observer = observer
        x = batch(rank).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        outputs += [y.detach(), x.grad, layer.running_var]
    (call,) = seen
    return dict(
        same=[torch.equal(outputs[i], outputs[i + 3]) for i in range(3)],
        local=(call.count, call.mean, call.second),
        group=(call.group_count, call.group_mean, call.group_var),
        seconds=[timer.seconds() for timer in call.collectives],
        recomputed=call.recomputed,
    )


def test_moments_of_rank_and_group():
    results = run_ranks(observed, 3)
    whole = torch.cat([batch(rank) for rank in range(3)]).double()
    positions = whole.movedim(1, 0).flatten(1)
    for rank, result in enumerate(results):
        assert result['same'] == [True, True, True]
        count, mean, second = result['local']
        own = batch(rank).double().movedim(1, 0).flatten(1)
        assert count == own.shape[1]
        if count:
            torch.testing.assert_close(mean, own.mean(1), **TOLERANCE)
            torch.testing.assert_close(
                second, own.var(1, correction=0) * count, **TOLERANCE
            )
        count, mean, var = result['group']
        assert count == positions.shape[1]
        torch.testing.assert_close(mean, positions.mean(1), **TOLERANCE)
        torch.testing.assert_close(
            var, positions.var(1, correction=0), **TOLERANCE
        )
        # Forward's and backward's.
        assert len(result['seconds']) == 2
        assert min(result['seconds']) > 0
        assert result['recomputed'] is False


def one_late(rank, world_size):
    layer = MegDetSyncBN(4)
    layer(torch.ones(2, 4, 3, 3))
    seen = []
    layer.observer = seen.append
    if rank == 0:
        time.sleep(0.5)
    layer(torch.ones(2, 4, 3, 3))
    return seen[0].collectives[0].seconds()


def test_the_late_rank_waits_least():
    late, waiting = run_ranks(one_late, 2)
    assert waiting > late


def recomputed(rank, world_size):
    layer = MegDetSyncBN(4)
    seen = []
    layer.observer = seen.append
    x = batch(rank).requires_grad_()
    checkpoint(layer, x, use_reentrant=False).square().sum().backward()
    return [(call.recomputed, len(call.collectives)) for call in seen]


def test_a_recomputed_forward_says_so():
    for calls in run_ranks(recomputed, 2):
        # Backward reports to the forward that built its graph.
        assert sorted(calls) == [(False, 2), (True, 1)]


def alone():
    layer = MegDetSyncBN(4)
    seen = []
    layer.observer = seen.append
    return layer, seen


def test_without_communication_the_group_is_the_rank():
    layer, seen = alone()
    x = batch(0)
    layer(x)
    layer(x[:0])
    layer.eval()(x)
    full, empty = seen
    own = x.double().movedim(1, 0).flatten(1)
    torch.testing.assert_close(full.mean, own.mean(1), **TOLERANCE)
    torch.testing.assert_close(
        full.group_var, own.var(1, correction=0), **TOLERANCE
    )
    assert (full.count, full.group_count.item()) == (90, 90)
    assert full.collectives == []
    assert (empty.count, empty.mean.tolist()) == (0, [0.0] * 4)
