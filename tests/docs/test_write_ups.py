# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What `docs/write_ups.md` says of write-ups, where no other test shows it."""

from __future__ import annotations

import types

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler import ConstantLR, LinearLR
from mmengine.runner import Runner
from torch import Tensor, nn

from mmdet_megdet.schedulers import PreciseLinearWarmup
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import run_threads

BASE = 0.04
EPS = 1e-5


def batch(rank: int, seed: int = 0) -> Tensor:
    """float64 (6, 3); each rank has a level of its own."""
    generator = torch.Generator().manual_seed(10 * seed + rank)
    return torch.randn(6, 3, generator=generator).double() + 2 * rank


def upstream(rank: int) -> Tensor:
    """The gradient that comes from above; its mean is far from zero."""
    return batch(rank, seed=1) + 5


def plain_all_reduce(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def identity_in_backward(x: Tensor, parts: list[Tensor]) -> Tensor:
    """The sum over ranks, of which autograd sees this rank's own part."""
    return x + sum(part.detach() for part in parts) - x.detach()


def textbook(x: Tensor, reduce, world_size: int) -> Tensor:
    """Synchronised normalisation of equal batches, as short write-ups do."""
    mean = reduce(x.mean(0)) / world_size
    square = reduce((x * x).mean(0)) / world_size
    return (x - mean) / (square - mean * mean + EPS).sqrt()


def textbook_gradients(rank, world_size):
    """Input gradient with either all-reduce, and with nothing reduced."""
    found = []
    for reduce in (plain_all_reduce, dist_nn.all_reduce):
        x = batch(rank).requires_grad_()
        output = textbook(x, reduce, world_size)
        output.backward(upstream(rank))
        found.append((output.detach(), x.grad))
    return found


@pytest.mark.filterwarnings('ignore:c10d')
def test_a_plain_all_reduce_has_no_gradient_of_its_own():
    """The output is right and the gradient is not, without any error."""
    ranks = run_ranks(textbook_gradients, 2)
    whole = torch.cat([batch(0), batch(1)]).requires_grad_()
    norm = nn.BatchNorm1d(3, eps=EPS, affine=False).double()
    output = norm(whole)
    output.backward(torch.cat([upstream(0), upstream(1)]))
    exact = whole.grad.split(6)
    for rank, (plain, differentiable) in enumerate(ranks):
        for found, _ in (plain, differentiable):
            torch.testing.assert_close(found, output.detach().split(6)[rank])
        torch.testing.assert_close(differentiable[1], exact[rank])
        wrong = (plain[1] - exact[rank]).abs().max()
        assert wrong > 0.5 * exact[rank].abs().max()
        # What comes out: each rank differentiates its own share of the sums.
        x = batch(rank).requires_grad_()
        parts = iter(
            [
                [batch(r).mean(0) for r in range(2)],
                [batch(r).square().mean(0) for r in range(2)],
            ]
        )
        textbook(
            x, lambda own, of=parts: identity_in_backward(own, next(of)), 2
        ).backward(upstream(rank))
        torch.testing.assert_close(plain[1], x.grad)


def learning_rates(scheduler: type, steps: int, **options) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=BASE)
    warmup = scheduler(optimizer, by_epoch=False, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        warmup.step()
    return rates


def test_a_constant_warmup_jumps():
    """By a factor of 1000 at once, where the linear one has small steps."""
    options = dict(begin=0, end=1000)
    constant = learning_rates(ConstantLR, 1002, factor=0.001, **options)
    linear = learning_rates(
        PreciseLinearWarmup, 1002, start_factor=0.001, **options
    )
    # `ConstantLR` too is one step early: it jumps at end - 1.
    assert constant[998] == pytest.approx(BASE / 1000)
    assert constant[999] == pytest.approx(BASE)
    steps = torch.tensor(linear).double().diff()[:1000]
    assert steps.max() < 1.001 * BASE * 0.999 / 1000
    assert linear[1000] == BASE


def test_stock_linear_lr_reaches_the_end_one_step_early():
    end = 10
    options = dict(start_factor=0.1, begin=0, end=end)
    stock = learning_rates(LinearLR, end + 1, **options)
    assert stock[end - 1] == pytest.approx(BASE)
    assert stock[end - 2] < 0.95 * BASE
    ours = learning_rates(PreciseLinearWarmup, end + 1, **options)
    # 0.1 + 0.9 * 9/10
    assert ours[end - 1] == pytest.approx(0.91 * BASE)
    assert ours[end] == BASE


def test_stock_linear_lr_cannot_start_at_zero():
    options = dict(start_factor=0, begin=0, end=10)
    with pytest.raises(ZeroDivisionError):
        learning_rates(LinearLR, 2, **options)
    assert learning_rates(PreciseLinearWarmup, 2, **options)[0] == 0


def running_mean(rank, world_size, layer):
    norm = layer(3).double()
    norm(batch(rank))
    return norm.running_mean


def test_channels_that_differ_or_agree_prove_nothing():
    """Only a comparison across ranks tells the two apart."""
    synced = run_threads(running_mean, 2, MegDetSyncBN)
    local = run_threads(running_mean, 2, nn.BatchNorm1d)
    for means in (*synced, *local):
        assert means.std() > 0
        assert means.isfinite().all()
    assert torch.equal(*synced)
    # Rank 0 is at level 0 and rank 1 at level 2, momentum is 0.1.
    assert (local[1] - local[0]).mean() > 0.1


def test_accumulation_does_not_enlarge_batch_norms_batch():
    """Two halves, accumulated, are not the whole batch in training mode."""
    gradients = {}
    for pieces in (1, 2):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        ).double()
        inputs = torch.cat([batch(0), batch(1)])
        for part in inputs.chunk(pieces):
            (model(part).square().mean() / pieces).backward()
        gradients[pieces] = model[2].weight.grad
    whole, accumulated = gradients[1], gradients[2]
    error = (accumulated - whole).abs().max() / whole.abs().max()
    assert error > 0.1


def test_auto_scale_lr_ignores_accumulation():
    """MMEngine's own method, for 8 x 4 images accumulated 8 times."""
    scaled = []
    for counts in (1, 8):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=BASE)
        wrapper = OptimWrapper(optimizer, accumulative_counts=counts)
        runner = types.SimpleNamespace(
            world_size=8,
            _train_dataloader=dict(batch_size=4),
            logger=types.SimpleNamespace(info=lambda _: None),
            param_schedulers=None,
        )
        Runner.scale_lr(
            runner, wrapper, dict(enable=True, base_batch_size=256)
        )
        scaled.append(optimizer.param_groups[0]['lr'])
    # The batch is 256 in the second case, and its learning rate an eighth.
    assert scaled == [BASE / 8, BASE / 8]
