# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What other definitions of synchronised BatchNorm compute.

``docs/sync_bn.md`` names these tests. Each writes the arithmetic of another
implementation as a formula of its own, and shows where it leaves the
BatchNorm of the whole batch, and that ours does not.
"""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.modules._functions import SyncBatchNorm as TorchFunction
from torch.testing import assert_close

from mmdet_megdet.sync_bn.kernels import local_moments
from mmdet_megdet.sync_bn.moments import pack, unpack

EPS = 1e-5
DIMS = (0, 2, 3)
# A few roundings of float64, relative to values of size 1 to 10.
EXACT = dict(rtol=1e-12, atol=1e-12)


def ranks_batches(*shapes):
    """float64 batches, (N, 3, H, W), each of a level of its own."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(n, 3, *size, generator=generator).double() + level
        for level, (n, *size) in enumerate(shapes)
    ]


def mean_and_var(parts):
    """Of all positions of all ranks."""
    whole = torch.cat([part.movedim(1, -1).flatten(0, -2) for part in parts])
    return whole.mean(0), whole.var(0, unbiased=False)


def ours(parts):
    """Mean and variance by the sums that our ranks exchange."""
    mean, var, _ = unpack(sum(pack(*local_moments(part)) for part in parts))
    return mean, var


def weighted_moments(parts, weights):
    """Statistics if each rank's moments weigh in with a given weight."""
    share = torch.tensor(weights).double()[:, None] / sum(weights)
    mean = (share * torch.stack([p.mean(DIMS) for p in parts])).sum(0)
    squares = torch.stack([p.square().mean(DIMS) for p in parts])
    return mean, (share * squares).sum(0) - mean.square()


def test_averaged_variances_drop_the_variance_of_the_means():
    """What write-ups that average per-rank variances compute."""
    parts = ranks_batches(*[(2, 4, 5)] * 4)
    mean, var = mean_and_var(parts)
    averaged = torch.stack([p.var(DIMS, unbiased=False) for p in parts])
    means = torch.stack([p.mean(DIMS) for p in parts])
    dropped = means.var(0, unbiased=False)
    assert_close(var - averaged.mean(0), dropped, **EXACT)
    # Levels 0 to 3 around values of variance 1: more than half is lost.
    assert (dropped > 0.5 * var).all()
    assert_close(ours(parts), (mean, var), **EXACT)


@pytest.mark.parametrize(
    ('shapes', 'weights', 'error'),
    [
        # detectron2's NaiveSyncBatchNorm '' and mmcv's 'default'.
        ([(2, 4, 5)] * 3, [1, 1, 1], 0),
        # Levels 0, 1, 2 by 1, 2, 9 images: mean 20/12 and not 1.
        ([(1, 4, 5), (2, 4, 5), (9, 4, 5)], [1, 1, 1], 0.4),
        # Their mode 'N'.
        ([(1, 4, 5), (2, 4, 5), (9, 4, 5)], [1, 2, 9], 0),
        # Levels 0 and 1 by 20 and 160 positions: mean 8/9 and not 1/2.
        ([(2, 4, 5), (2, 16, 10)], [2, 2], 0.25),
    ],
)
def test_equal_weights_and_weights_by_images(shapes, weights, error):
    """Right where ranks, or images, are equal, and wrong elsewhere."""
    parts = ranks_batches(*shapes)
    true = mean_and_var(parts)
    found = weighted_moments(parts, weights)
    if error:
        assert ((true[0] - found[0]) > error).all()
    else:
        assert_close(found, true, **EXACT)
    assert_close(ours(parts), true, **EXACT)


def test_mean_square_minus_squared_mean_in_float32():
    """The variance of values whose mean is 1000."""
    generator = torch.Generator().manual_seed(0)
    x = 1000 + torch.randn(16, 64, 16, 16, generator=generator) / 10
    true = x.double().var(DIMS, unbiased=False)
    mean = x.mean(DIMS)
    var = (x * x).mean(DIMS) - mean * mean
    # float32 values near a million are multiples of 1/16, so all that can
    # come out for a variance of 0.01 is off by (nearly) all of it or more.
    assert torch.equal((16 * var).round(), 16 * var)
    assert ((var - true).abs() > 0.9 * true).all()
    # And the square root of some is not a number.
    assert (var + EPS).rsqrt().isnan().any()
    # Each rank centres first. Rounding of the inputs' differences, squares
    # and sums of 4096: under 32 of 2^-24.
    _, var = ours(list(x.split(8)))
    assert_close(var, true, rtol=32 * 2.0**-24, atol=0)


def test_an_empty_half_precision_rank_of_torch_sends_half(monkeypatch):
    """nn.SyncBatchNorm itself, up to its collective.

    A rank that is not empty sends what ``torch.batch_norm_stats`` returns,
    which is float32 for half-precision inputs; it runs on GPUs alone.
    """
    gather = mock.Mock(side_effect=InterruptedError)
    monkeypatch.setattr(dist, 'all_gather', gather)
    group = SimpleNamespace(_get_backend_name=lambda: 'gloo')
    x = torch.empty(0, 3, 4, 5, dtype=torch.half)
    vectors = torch.ones(4, 3)
    with pytest.raises(InterruptedError):
        TorchFunction.apply(x, *vectors, EPS, 0.1, group, 2)
    _, sent = gather.call_args.args[:2]
    assert (sent.dtype, sent.numel()) == (torch.half, 7)
