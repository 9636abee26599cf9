# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What other definitions of synchronised BatchNorm compute.

``docs/sync_bn.md`` names these tests. Each writes the arithmetic of another
implementation as a formula of its own, and shows where it leaves the
BatchNorm of the whole batch, which ours is (``test_moments.py``).
"""

import pytest
import torch
from torch.testing import assert_close

from mmdet_megdet.sync_bn.kernels import local_moments
from mmdet_megdet.sync_bn.moments import pack, unpack

DIMS = (0, 2, 3)
# A few roundings of float64, relative to values of size 1 to 10.
EXACT = dict(rtol=1e-12, atol=1e-12)


def ranks_batches(*shapes):
    """float64 batches, (N, 3, H, W), each of a level of its own.

    And mean and variance of all together.
    """
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(n, 3, *size, generator=generator).double() + level
        for level, (n, *size) in enumerate(shapes)
    ]
    whole = torch.cat([part.movedim(1, -1).flatten(0, -2) for part in parts])
    return parts, (whole.mean(0), whole.var(0, unbiased=False))


def test_averaged_variances_drop_the_variance_of_the_means():
    """What write-ups that average per-rank variances compute."""
    parts, (_, var) = ranks_batches(*[(2, 4, 5)] * 4)
    averaged = torch.stack([p.var(DIMS, unbiased=False) for p in parts])
    means = torch.stack([p.mean(DIMS) for p in parts])
    dropped = means.var(0, unbiased=False)
    assert_close(var - averaged.mean(0), dropped, **EXACT)
    # Levels 0 to 3 around values of variance 1: more than half is lost.
    assert (dropped > 0.5 * var).all()


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
    parts, true = ranks_batches(*shapes)
    share = torch.tensor(weights).double() / sum(weights)
    mean = share @ torch.stack([p.mean(DIMS) for p in parts])
    square = share @ torch.stack([p.square().mean(DIMS) for p in parts])
    if error:
        assert ((true[0] - mean) > error).all()
    else:
        assert_close((mean, square - mean.square()), true, **EXACT)


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
    assert (var + 1e-5).rsqrt().isnan().any()
    # Each rank centres first. Rounding of the inputs' differences, squares
    # and sums of 4096: under 32 of 2^-24.
    _, var, _ = unpack(sum(pack(*local_moments(part)) for part in x.split(8)))
    assert_close(var, true, rtol=32 * 2.0**-24, atol=0)
