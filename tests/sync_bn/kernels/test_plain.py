# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The sums of the backward pass, on both their paths, against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn.kernels import blocks, plain

# Unit roundoff of float32.
U = 2.0**-24


def batch(shape, mean, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    x, dy = torch.randn(2, *shape, generator=generator)
    x = (x + mean).to(dtype)
    origin = x.double().transpose(0, 1).flatten(1).mean(1)
    return x, dy.to(dtype), origin.to(torch.promote_types(dtype, torch.float))


def assert_sums(x, dy, origin, chain):
    sums = plain.centred_gradient_sums(x, dy, origin)
    x, dy = (v.double().transpose(0, 1).flatten(1) for v in (x, dy))
    products = dy * (x - origin.double()[:, None])
    for got, summands, roundings in (
        (sums[0], dy, 0),
        # x - origin and its product are rounded once each; x itself lies
        # within U of its float32 value.
        (sums[1], products, 2),
    ):
        assert got.dtype == torch.float64
        bound = (chain + roundings) * U * summands.abs().sum(1)
        assert ((got - summands.sum(1)).abs() <= bound).all()


@settings(max_examples=40)
@given(
    images=st.integers(1, 4),
    channels=st.integers(1, 5),
    # Rows for the fused kernel: one, many, and lengths that cannot be cut.
    length=st.sampled_from([1, 31, 32, 247, 2048, 1031, 2062, 15200]),
    mean=st.sampled_from([0.0, 1000.0]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 2**16),
)
def test_gradient_sums(images, channels, length, mean, dtype, seed):
    x, dy, origin = batch((images, channels, length), mean, dtype, seed)
    # In at least 8 vector lanes no more additions follow one another than
    # an eighth of a row, and the lanes' sums.
    assert_sums(x, dy, origin, chain=blocks.LONGEST_PIECE // 8 + 8)


@pytest.mark.parametrize('channels_last', [True, False])
def test_gradient_sums_of_other_layouts(channels_last):
    x, dy, origin = batch((3, 4, 8, 9), 0.0, torch.float32, 0)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    # An expanded gradient, as that of a sum.
    for gradient in (dy, dy.transpose(2, 3).contiguous().transpose(2, 3)):
        assert_sums(x, gradient, origin, chain=32)
    assert_sums(x, dy[:1, :1, :1, :1].expand_as(x), origin, chain=32)
