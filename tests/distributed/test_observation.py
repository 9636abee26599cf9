# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a layer tells its observer: the numbers, and only the numbers."""

import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_ranks


def batch(rank):
    """Rank 1 has no image."""
    generator = torch.Generator().manual_seed(rank)
    images = (3, 0, 2)[rank]
    return torch.randn(images, 4, 5, 6, generator=generator) * 3 + rank


def observed(rank, world_size):
    seen, results = [], []
    for observer in (None, seen.append):
        layer = MegDetSyncBN(4)
        layer.observer = observer
        x = batch(rank).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        results.append([y.detach(), x.grad, layer.running_var.clone()])
    assert all(map(torch.equal, *results))
    x = batch(rank).requires_grad_()
    checkpoint(layer, x, use_reentrant=False).square().sum().backward()

    call, *again = seen
    whole = torch.cat([batch(rank) for rank in range(3)])
    second = call.group_var * call.group_count
    for x, count, *moments in (
        (batch(rank), call.count, call.mean, call.second),
        (whole, call.group_count, call.group_mean, second),
    ):
        values = x.double().movedim(1, 0).flatten(1)
        assert count == values.shape[1]
        if count:
            # float64 sums of float32 numbers: rounding of some ulp of float32
            # at most, from the block sums (parity.py derives the bounds).
            true = values.mean(1), values.var(1, correction=0) * count
            assert_close(tuple(moments), true, rtol=1e-6, atol=1e-6)
    # Forward's and backward's.
    assert len(call.collectives) == 2
    assert all(timer.seconds() > 0 for timer in call.collectives)
    # Backward reports to the forward that built its graph.
    found = sorted((c.recomputed, len(c.collectives)) for c in again)
    assert found == [(False, 2), (True, 1)]


def test_moments_of_rank_and_group():
    run_ranks(observed, 3)
