# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What `docs/write_ups.md` says of write-ups, where no other test shows it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from mmengine.optim.scheduler import LinearLR
from torch import Tensor, nn

from mmdet_megdet.schedulers import PreciseLinearWarmup
from tests.distributed.ranks import run_ranks

BASE = 0.04
EPS = 1e-5


def batch(rank: int, seed: int = 0) -> Tensor:
    """float64 (6, 3); each rank has a level of its own."""
    generator = torch.Generator().manual_seed(10 * seed + rank)
    return torch.randn(6, 3, generator=generator).double() + 2 * rank


def plain_all_reduce(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def textbook(rank, world_size):
    """Output and input gradient, with either all-reduce in the forward."""
    found = []
    for reduce in (plain_all_reduce, dist_nn.all_reduce):
        x = batch(rank).requires_grad_()
        mean = reduce(x.mean(0)) / world_size
        square = reduce((x * x).mean(0)) / world_size
        output = (x - mean) / (square - mean * mean + EPS).sqrt()
        # What comes from above; its mean is far from zero.
        output.backward(batch(rank, seed=1) + 5)
        found.append((output.detach(), x.grad))
    return found


@pytest.mark.filterwarnings('ignore:c10d')
def test_a_plain_all_reduce_has_no_gradient_of_its_own():
    """The output is right and the gradient is not, without any error."""
    ranks = run_ranks(textbook, 2)
    whole = torch.cat([batch(0), batch(1)]).requires_grad_()
    norm = nn.BatchNorm1d(3, eps=EPS, affine=False).double()
    output = norm(whole)
    output.backward(torch.cat([batch(0, seed=1), batch(1, seed=1)]) + 5)
    exact = whole.grad.split(6)
    for rank, (plain, differentiable) in enumerate(ranks):
        for found, _ in (plain, differentiable):
            torch.testing.assert_close(found, output.detach().split(6)[rank])
        torch.testing.assert_close(differentiable[1], exact[rank])
        wrong = (plain[1] - exact[rank]).abs().max()
        assert wrong > 0.5 * exact[rank].abs().max()


def test_stock_linear_lr_reaches_the_end_one_step_early():
    found = []
    for kind in (LinearLR, PreciseLinearWarmup):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=BASE)
        options = dict(start_factor=0.1, begin=0, end=10, by_epoch=False)
        warmup = kind(optimizer, **options)
        for _ in range(9):
            optimizer.step()
            warmup.step()
        found.append(optimizer.param_groups[0]['lr'])
    # 0.1 + 0.9 * 9/10
    assert found == pytest.approx([BASE, 0.91 * BASE])
