# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Sums of ranks against float64 on the whole batch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn import moments
from mmdet_megdet.sync_bn.kernels import local_moments


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    mean=st.sampled_from([0.0, 1.0, -1000.0, 1e6]),
    seed=st.integers(0, 2**16),
)
def test_packed_sums_add_up_to_the_whole_batch(counts, mean, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [
        torch.randn(n, 3, dtype=torch.float64, generator=generator) + mean
        for n in counts
    ]
    sums = sum(moments.pack(*local_moments(p)) for p in parts)
    got_mean, got_var, got_count = moments.unpack(sums)

    assert sums.shape == (7,)
    assert got_count.item() == sum(counts)
    whole = torch.cat(parts)
    if not len(whole):
        assert got_mean.tolist() == got_var.tolist() == [0.0] * 3
        return
    true_mean = whole.mean(0)
    true_var = whole.var(0, unbiased=False)
    bound = 8 * 2.0**-53 * (true_mean.square() + true_var + 1)
    assert ((got_mean - true_mean).abs() <= bound.sqrt() * 2.0**-25).all()
    assert ((got_var - true_var).abs() <= bound).all()
    assert (got_var >= 0).all()


def test_split_mean_is_lossless():
    mean = torch.tensor([1000.00001, -1 / 3, 0.0], dtype=torch.float64)
    rounded, rest = moments.split_mean(mean, torch.float32)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded.double() + rest, mean)
    rounded, rest = moments.split_mean(mean, torch.float64)
    assert torch.equal(rounded, mean)
    assert not rest.any()
