# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How exact a batch's sums are, against float64 on the whole batch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_rows_are_cut_into_equal_and_short_pieces():
    """A prime length is left to the blocks."""
    lengths = 31, 32, 15200, 1031
    assert [blocks.equal_pieces(n) for n in lengths] == [0, 1, 16, 0]
