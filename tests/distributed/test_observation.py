# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a layer tells its observer: the numbers, and only the numbers."""

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
    seen, outputs = [], []
    for observer in (None, seen.append):
        layer = MegDetSyncBN(4)
        layer.observer = observer
        x = batch(rank).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        outputs += [y.detach(), x.grad, layer.running_var.clone()]
    x = batch(rank).requires_grad_()
    checkpoint(layer, x, use_reentrant=False).square().sum().backward()
    (call, *again) = seen
    return dict(
        same=[torch.equal(outputs[i], outputs[i + 3]) for i in range(3)],
        local=(call.count, call.mean, call.second),
        group=(call.group_count, call.group_mean, call.group_var),
        seconds=[timer.seconds() for timer in call.collectives],
        again=sorted((c.recomputed, len(c.collectives)) for c in again),
    )


def test_moments_of_rank_and_group():
    whole = torch.cat([batch(rank) for rank in range(3)]).double()
    positions = whole.movedim(1, 0).flatten(1)
    for rank, result in enumerate(run_ranks(observed, 3)):
        assert result['same'] == [True, True, True]
        count, mean, second = result['local']
        own = batch(rank).double().movedim(1, 0).flatten(1)
        assert count == own.shape[1]
        if count:
            var = own.var(1, correction=0)
            torch.testing.assert_close(mean, own.mean(1), **TOLERANCE)
            torch.testing.assert_close(second, var * count, **TOLERANCE)
        count, mean, var = result['group']
        assert count == positions.shape[1]
        expected = positions.var(1, correction=0)
        torch.testing.assert_close(mean, positions.mean(1), **TOLERANCE)
        torch.testing.assert_close(var, expected, **TOLERANCE)
        # Forward's and backward's.
        assert len(result['seconds']) == 2
        assert min(result['seconds']) > 0
        # Backward reports to the forward that built its graph.
        assert result['again'] == [(False, 2), (True, 1)]
