# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How exact a batch's sums are, against float64 on the whole batch.

And how other formulas, which ``docs/sync_bn.md`` speaks of, are not.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from mmdet_megdet.sync_bn import local_moments
from mmdet_megdet.sync_bn.kernels import blocks
from mmdet_megdet.sync_bn.moments import pack, unpack


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    mean=st.sampled_from([0.0, 1.0, -1000.0, 1e6]),
    seed=st.integers(0, 2**16),
)
def test_ranks_sums_add_up_to_the_whole_batch(counts, mean, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(sum(counts), 3, generator=generator).double() + mean
    sums = sum(pack(*local_moments(part)) for part in whole.split(counts))
    got_mean, got_var, got_count = unpack(sums)
    assert got_count.item() == sum(counts)
    if not len(whole):
        assert got_mean.tolist() == got_var.tolist() == [0.0] * 3
        return
    true_mean, true_var = whole.mean(0), whole.var(0, unbiased=False)
    bound = 8 * 2.0**-53 * (true_mean.square() + true_var + 1)
    assert ((got_mean - true_mean).abs() <= bound.sqrt() * 2.0**-25).all()
    assert ((got_var - true_var).abs() <= bound).all()
    assert (got_var >= 0).all()


def test_averaged_variances_drop_the_variance_of_the_means():
    """Of four ranks at levels 0 to 3, with values of variance 1."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.randn(4, 40, 3, generator=generator).double()
    ranks += torch.arange(4)[:, None, None]
    var = ranks.flatten(0, 1).var(0, unbiased=False)
    averaged = ranks.var(1, unbiased=False).mean(0)
    dropped = ranks.mean(1).var(0, unbiased=False)
    assert_close(var - averaged, dropped, rtol=1e-12, atol=1e-12)
    # More than half is lost.
    assert (dropped > 0.5 * var).all()


def test_mean_square_minus_squared_mean_in_float32():
    """The variance of values whose mean is 1000."""
    generator = torch.Generator().manual_seed(0)
    x = 1000 + torch.randn(4096, 64, generator=generator) / 10
    true = x.double().var(0, unbiased=False)
    mean = x.mean(0)
    var = (x * x).mean(0) - mean * mean
    # float32 values near a million are multiples of 1/16, so all that can
    # come out for a variance of 0.01 is off by (nearly) all of it or more.
    assert torch.equal((16 * var).round(), 16 * var)
    assert ((var - true).abs() > 0.9 * true).all()
    # And the square root of some is not a number.
    assert (var + 1e-5).rsqrt().isnan().any()
    # Each rank centres first. Rounding of the inputs' differences, squares
    # and sums of 4096: under 32 of 2^-24.
    _, var, _ = unpack(sum(pack(*local_moments(p)) for p in x.split(2048)))
    assert_close(var, true, rtol=32 * 2.0**-24, atol=0)


def test_rows_are_cut_into_equal_and_short_pieces():
    """A prime length is left to the blocks."""
    lengths = 31, 32, 15200, 1031
    assert [blocks.equal_pieces(n) for n in lengths] == [0, 1, 16, 0]
