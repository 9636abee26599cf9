# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What other definitions of synchronised BatchNorm compute.

``docs/sync_bn.md`` names these tests. Each writes the arithmetic of another
implementation as a formula of its own, and shows where it leaves the
BatchNorm of the whole batch, and that ours does not. Where the
implementation itself runs on a CPU it is called.
"""

from __future__ import annotations

import copy
import types

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as TorchFunction

from mmdet_megdet.sync_bn.kernels import local_moments
from mmdet_megdet.sync_bn.moments import pack, unpack
from tests.distributed.ranks import run_ranks

EPS = 1e-5
DIMS = (0, 2, 3)
# A few roundings of float64, relative to values of size 1 to 10.
EXACT = dict(rtol=1e-12, atol=1e-12)


def ranks_batches(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """float64 batches, (N, 3, H, W), each of a level of its own."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64) + level
        for level, shape in enumerate(shapes)
    ]


def whole_batch(parts: list[Tensor]) -> Tensor:
    """All positions of all ranks, (positions, 3)."""
    return torch.cat([part.transpose(0, 1).flatten(1).T for part in parts])


def mean_and_var(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    whole = whole_batch(parts)
    return whole.mean(0), whole.var(0, unbiased=False)


def ours(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance by the sums that our ranks exchange."""
    mean, var, _ = unpack(sum(pack(*local_moments(part)) for part in parts))
    return mean, var


def weighted_moments(
    parts: list[Tensor], weights: list[int]
) -> tuple[Tensor, Tensor]:
    """Statistics if each rank's moments weigh in with a given weight."""
    total = sum(weights)

    def mean_of(vectors):
        weighted = zip(weights, vectors, strict=True)
        return sum(w * v for w, v in weighted) / total

    mean = mean_of([part.mean(DIMS) for part in parts])
    square = mean_of([part.square().mean(DIMS) for part in parts])
    return mean, square - mean.square()


def test_averaged_variances_drop_the_variance_of_the_means():
    """What write-ups that average per-rank variances compute."""
    parts = ranks_batches(*[(2, 3, 4, 5)] * 4)
    mean, var = mean_and_var(parts)
    averaged = torch.stack([p.var(DIMS, unbiased=False) for p in parts])
    averaged = averaged.mean(0)
    means = torch.stack([p.mean(DIMS) for p in parts])
    dropped = means.var(0, unbiased=False)
    torch.testing.assert_close(var - averaged, dropped, **EXACT)
    # Levels 0 to 3 around values of variance 1: more than half is lost.
    assert (dropped > 0.5 * var).all()
    torch.testing.assert_close(ours(parts), (mean, var), **EXACT)


def test_equal_weights_are_right_for_equal_ranks_alone():
    """detectron2's NaiveSyncBatchNorm '' and mmcv's 'default'."""
    equal = ranks_batches(*[(2, 3, 4, 5)] * 3)
    torch.testing.assert_close(
        weighted_moments(equal, [1, 1, 1]), mean_and_var(equal), **EXACT
    )
    uneven = ranks_batches((1, 3, 4, 5), (2, 3, 4, 5), (9, 3, 4, 5))
    true = mean_and_var(uneven)
    mean, _ = weighted_moments(uneven, [1, 1, 1])
    # Levels 0, 1, 2 by 1, 2, 9 images: mean 20/12 and not 1.
    assert ((true[0] - mean) > 0.4).all()
    torch.testing.assert_close(ours(uneven), true, **EXACT)


def test_weights_by_images_are_right_for_equal_sizes_alone():
    """detectron2's and mmcv's mode 'N'."""
    equal = ranks_batches((1, 3, 4, 5), (2, 3, 4, 5), (9, 3, 4, 5))
    torch.testing.assert_close(
        weighted_moments(equal, [1, 2, 9]), mean_and_var(equal), **EXACT
    )
    sizes = ranks_batches((2, 3, 4, 5), (2, 3, 16, 10))
    true = mean_and_var(sizes)
    mean, _ = weighted_moments(sizes, [2, 2])
    # Levels 0 and 1 by 20 and 160 positions: mean 8/9 and not 1/2.
    assert ((true[0] - mean) > 0.25).all()
    torch.testing.assert_close(ours(sizes), true, **EXACT)


def by_moments(x: Tensor) -> Tensor:
    """detectron2's and the textbook's."""
    mean = x.mean(DIMS)
    return (x * x).mean(DIMS) - mean * mean


def by_sums(x: Tensor) -> Tensor:
    """vacancy's."""
    total, count = x.sum(DIMS), x[:, 0].numel()
    return ((x * x).sum(DIMS) - total * (total / count)) / count


@pytest.mark.parametrize('formula', [by_moments, by_sums])
def test_mean_square_minus_squared_mean_in_float32(formula):
    """The variance of values whose mean is 1000."""
    generator = torch.Generator().manual_seed(0)
    x = 1000 + torch.randn(16, 64, 16, 16, generator=generator) / 10
    true = x.double().var(DIMS, unbiased=False)
    var = formula(x)
    # float32 values near a million are multiples of 1/16, and near 4096
    # million of 4096/16, so all that can come out for a variance of 0.01 is
    # off by (nearly) all of it or more.
    assert torch.equal((16 * var).round(), 16 * var)
    assert ((var - true).abs() > 0.9 * true).all()
    # And the square root of some is not a number.
    assert (var + EPS).rsqrt().isnan().any()
    # Each rank centres first. Rounding of the inputs' differences, squares
    # and sums of 4096: under 32 of 2^-24.
    _, var = ours(list(x.split(8)))
    torch.testing.assert_close(var, true, rtol=32 * 2.0**-24, atol=0)


def test_variance_from_invstd_in_float32():
    """The step of nn.SyncBatchNorm, v = 1 / invstd^2 - eps."""
    var = torch.logspace(-14, -12.5, 64)
    invstd = 1 / (var + EPS).sqrt()
    back = (1 / invstd).square() - EPS
    # Near 1e-5 float32 has steps of 9e-13.
    assert ((back - var).abs() > var).float().mean() > 0.5
    # The output does not notice: eps is added again. It is the running
    # variance that is made of rounding.
    torch.testing.assert_close(
        (back + EPS).rsqrt(), invstd, rtol=8 * 2.0**-24, atol=0
    )
    # Ours, for a channel of that variance.
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x *= 1e-7
    true = x.double().var(DIMS, unbiased=False)
    assert (true < 2e-14).all()
    torch.testing.assert_close(ours([x])[1], true, rtol=1e-5, atol=0)


def input_gradient(
    dy: Tensor, x_hat: Tensor, invstd: Tensor, sums: Tensor, count: int
) -> Tensor:
    """BatchNorm's input gradient with weight 1, ``sums`` over ``count``."""
    mean_dy, mean_dy_x_hat = (
        v.view(1, -1, 1, 1) / count for v in sums.chunk(2)
    )
    return invstd * (dy - mean_dy - x_hat * mean_dy_x_hat)


@pytest.mark.parametrize(
    ('images', 'right'), [((2, 2), True), ((1, 7), False)]
)
def test_gradient_sums_divided_by_the_local_count(images, right):
    """mmcv's backward: sums averaged over ranks, by the local count."""
    parts = ranks_batches(*[(n, 3, 4, 5) for n in images])
    dys = ranks_batches(*[(n, 3, 4, 5) for n in images], seed=1)
    x = torch.cat(parts).requires_grad_()
    plain = nn.BatchNorm2d(3, eps=EPS).double()
    plain(x).backward(torch.cat(dys))
    true = x.grad.split(images)

    mean, var = (v.view(1, -1, 1, 1) for v in mean_and_var(parts))
    invstd = (var + EPS).rsqrt()
    x_hats = [(part - mean) * invstd for part in parts]
    sums = sum(
        torch.cat([dy.sum(DIMS), (dy * x_hat).sum(DIMS)])
        for dy, x_hat in zip(dys, x_hats, strict=True)
    )
    positions = [20 * n for n in images]
    for rank, (dy, x_hat) in enumerate(zip(dys, x_hats, strict=True)):
        exact = input_gradient(dy, x_hat, invstd, sums, sum(positions))
        torch.testing.assert_close(exact, true[rank], **EXACT)
        local = input_gradient(
            dy, x_hat, invstd, sums / len(images), positions[rank]
        )
        error = (local - true[rank]).abs().max() / true[rank].abs().max()
        assert (error < 1e-12) if right else (error > 0.1)


def test_a_clamped_variance_is_not_an_added_eps():
    """vacancy's max(var, eps)^-1/2 in place of (var + eps)^-1/2."""
    var = torch.tensor([EPS / 100, EPS, 1.0], dtype=torch.float64)
    ratio = var.clamp(EPS).rsqrt() / (var + EPS).rsqrt()
    expected = torch.tensor([1.01**0.5, 2**0.5, 1 + EPS / 2]).double()
    torch.testing.assert_close(ratio, expected, rtol=1e-6, atol=0)


def test_squares_in_half_precision_overflow():
    """vacancy's sums are taken in the input's own dtype."""
    x = torch.full((2, 3, 4, 5), 300.0, dtype=torch.half)
    x[0] -= 2
    assert (x**2).sum(DIMS).isinf().all()
    mean, var = ours([x])
    assert mean.tolist() == [299.0] * 3
    assert var.tolist() == [1.0] * 3


def test_a_biased_running_variance():
    """detectron2 keeps the batch's own variance: n / (n - 1) too small."""
    parts = ranks_batches((1, 3, 1, 2), (1, 3, 1, 2))
    plain = nn.BatchNorm2d(3, momentum=1).double()
    plain(torch.cat(parts))
    _, var = mean_and_var(parts)
    torch.testing.assert_close(plain.running_var, var * 4 / 3, **EXACT)


class SentError(Exception):
    """Ends a forward at its collective, and tells what was to be sent."""


def test_an_empty_half_precision_rank_of_torch_sends_half(monkeypatch):
    """nn.SyncBatchNorm itself, up to its collective.

    A rank that is not empty sends what ``torch.batch_norm_stats`` returns,
    which is float32 for half-precision inputs; it runs on GPUs alone.
    """

    def all_gather(outputs, tensor, *args, **kwargs):
        raise SentError(tensor.dtype, tensor.numel())

    monkeypatch.setattr(dist, 'all_gather', all_gather)
    group = types.SimpleNamespace(_get_backend_name=lambda: 'gloo')
    x = torch.empty(0, 3, 4, 5, dtype=torch.half)
    statistics = torch.zeros(3), torch.ones(3)
    affine = torch.ones(3), torch.zeros(3)
    with pytest.raises(SentError) as sent:
        TorchFunction.apply(x, *affine, *statistics, EPS, 0.1, group, 2)
    assert sent.value.args == (torch.half, 7)
    # Ours: the same whatever the input.
    for images in (0, 2):
        x = torch.empty(images, 3, 4, 5, dtype=torch.half)
        assert pack(*local_moments(x)).dtype == torch.float64


def mmcv_layer(rank, world_size):
    """What mmcv's layer does on a CPU, and when it is copied."""
    from mmcv.ops import SyncBatchNorm

    layer = SyncBatchNorm(3)
    faults = []
    for attempt in (
        lambda: layer(torch.randn(2, 3, 4, 5)),
        lambda: copy.deepcopy(layer),
    ):
        try:
            attempt()
            faults.append(None)
        except Exception as error:
            faults.append(str(error))
    return faults


def test_mmcv_wants_a_gpu_and_a_process_group():
    from mmcv import ops

    on_cpu, copied = run_ranks(mmcv_layer, 1)[0]
    assert 'sync_bn_forward_mean_impl' in on_cpu
    assert 'pickle' in copied
    with pytest.raises(ValueError, match='process group'):
        ops.SyncBatchNorm(3)
