# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The sums of plain operations, forward and backward, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn import moments
from mmdet_megdet.sync_bn.kernels import blocks, plain

# Unit roundoff of float32. In a sum over the positions of one of the small
# inputs below, at most 24 float32 additions follow one another.
U = 2.0**-24
CHAIN = 24
# Elsewhere no more than in a piece, in 8 lanes or more, and the lanes' sums.
LONG_CHAIN = blocks.LONGEST_PIECE // 8 + 8

LAYOUTS = {
    'contiguous': lambda x: x.contiguous(),
    'channels last': lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    'sliced': lambda x: x.repeat_interleave(2, 1)[:, ::2],
    'transposed': lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
}
layouts = st.sampled_from(sorted(LAYOUTS)).map(LAYOUTS.get)
seeds = st.integers(0, 2**16)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def batch(shape, mean, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    x, dy = torch.randn(2, *shape, generator=generator)
    return (x + mean).to(dtype), dy.to(dtype)


def by_channel(x):
    return x.double().transpose(0, 1).flatten(1)


def assert_moments(x, chain=CHAIN):
    count, mean, second = plain.local_moments(x)
    true = by_channel(x)
    true_mean = true.mean(1)
    true_second = (true - true_mean[:, None]).square().sum(1)
    assert count == true.shape[1]
    assert mean.dtype == second.dtype == torch.float64
    # The float32 sums run over deviations from the mean, so the error is
    # relative to the spread, not to the mean. The mean's own float64
    # arithmetic is rounded relative to the mean.
    spread = (true_second / count).sqrt()
    bound = chain * U * spread + 4 * 2.0**-53 * true_mean.abs()
    assert ((mean - true_mean).abs() <= bound).all()
    # Each square comes with three roundings: x - origin, twice, and its own.
    # The reference itself rounds x - mean relative to the mean.
    bound = count * (2.0**-52 * true_mean).square()
    bound += (chain + 3) * U * true_second
    assert ((second - true_second).abs() <= bound).all()


@settings(max_examples=100)
@given(
    images=st.integers(1, 6),
    channels=st.integers(1, 7),
    spatial=st.sampled_from([(), (5,), (4, 3), (2, 3, 2)]),
    mean=st.sampled_from([0.0, -3.0, 1000.0, 1e6]),
    dtype=dtypes,
    layout=layouts,
    block=st.sampled_from([1, 16, 1 << 20]),
    seed=seeds,
)
def test_local_moments(
    images, channels, spatial, mean, dtype, layout, block, seed
):
    x, _ = batch((images, channels, *spatial), mean, dtype, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, 'CPU_BLOCK_ELEMENTS', block)
        assert_moments(layout(x))


@pytest.mark.parametrize('length', [247, 950, 1031, 15200, 60800])
@pytest.mark.parametrize('mean', [0, 1000])
def test_local_moments_of_long_rows(length, mean):
    x, _ = batch((2, 3, length), mean, torch.float32, seed=0)
    # The square of a root is rounded too.
    assert_moments(x, LONG_CHAIN + 3)


def test_local_moments_of_nothing_and_of_a_constant():
    for shape in [(0, 3), (0, 3, 4, 4), (2, 3, 0, 4)]:
        count, mean, second = plain.local_moments(torch.empty(shape))
        assert count == 0
        assert mean.tolist() == second.tolist() == [0.0] * 3
    x = torch.full((4, 2, 3, 3), 1234.567)
    _, mean, second = plain.local_moments(x)
    assert mean.tolist() == x[0, :, 0, 0].double().tolist()
    assert second.tolist() == [0.0, 0.0]


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    mean=st.sampled_from([0.0, 1.0, -1000.0, 1e6]),
    seed=seeds,
)
def test_packed_sums_add_up_to_the_whole_batch(counts, mean, seed):
    whole, _ = batch((sum(counts), 3), mean, torch.float64, seed)
    parts = map(plain.local_moments, whole.split(counts))
    sums = sum(moments.pack(*part) for part in parts)
    got_mean, got_var, got_count = moments.unpack(sums)

    assert sums.shape == (7,)
    assert got_count.item() == sum(counts)
    if not len(whole):
        assert got_mean.tolist() == got_var.tolist() == [0.0] * 3
        return
    true_mean, true_var = whole.mean(0), whole.var(0, unbiased=False)
    bound = 8 * 2.0**-53 * (true_mean.square() + true_var + 1)
    assert ((got_mean - true_mean).abs() <= bound.sqrt() * 2.0**-25).all()
    assert ((got_var - true_var).abs() <= bound).all()
    assert (got_var >= 0).all()


def assert_gradient_sums(x, dy, chain):
    origin = by_channel(x).mean(1)
    origin = origin.to(torch.promote_types(x.dtype, torch.float32))
    sums = plain.centred_gradient_sums(x, dy, origin)
    x, dy = by_channel(x), by_channel(dy)
    # x - origin and its product are rounded once each; x itself lies within
    # U of its float32 value.
    products = dy * (x - origin.double()[:, None])
    for got, summands, roundings in zip(
        sums, (dy, products), (0, 2), strict=True
    ):
        assert got.dtype == torch.float64
        bound = (chain + roundings) * U * summands.abs().sum(1)
        assert ((got - summands.sum(1)).abs() <= bound).all()


@settings(max_examples=60)
@given(
    images=st.integers(1, 4),
    channels=st.integers(1, 5),
    # Rows for the fused kernel: one, many, and lengths that cannot be cut.
    length=st.sampled_from([1, 31, 32, 247, 2048, 1031, 2062, 15200]),
    mean=st.sampled_from([0.0, 1000.0]),
    dtype=dtypes,
    layout=layouts,
    gradient=layouts | st.just(lambda dy: dy[:1, :1, :1].expand_as(dy)),
    seed=seeds,
)
def test_gradient_sums(
    images, channels, length, mean, dtype, layout, gradient, seed
):
    x, dy = batch((images, channels, length), mean, dtype, seed)
    assert_gradient_sums(layout(x), gradient(dy), LONG_CHAIN)


@pytest.mark.parametrize(
    ('length', 'pieces'), [(31, 0), (32, 1), (15200, 16), (1031, 0)]
)
def test_rows_are_cut_into_equal_and_short_pieces(length, pieces):
    """A prime length is left to the blocks."""
    assert blocks.equal_pieces(length) == pieces
