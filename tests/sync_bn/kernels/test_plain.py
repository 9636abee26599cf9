# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The sums of plain operations, forward and backward, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn import moments
from mmdet_megdet.sync_bn.kernels import blocks, plain

U = 2.0**-24  # unit roundoff of float32
# Rows for the fused kernels: one, many, and lengths that cannot be cut.
LONG = [31, 32, 247, 950, 1031, 2048, 2062, 15200]
LAYOUTS = {
    'contiguous': lambda x: x.contiguous(),
    'channels last': lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    'sliced': lambda x: x.repeat_interleave(2, 1)[:, ::2],
    'transposed': lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    'expanded': lambda x: x[:1, :1].expand_as(x),
}
layouts = st.sampled_from(list(LAYOUTS)[:-1])


def by_channel(x):
    return x.double().transpose(0, 1).flatten(1)


def true_moments(x):
    values = by_channel(x)
    mean = values.mean(1)
    return values.shape[1], mean, (values.T - mean).square().sum(0)


def assert_moments(x, chain):
    count, mean, second = plain.local_moments(x)
    true_count, true_mean, true_second = true_moments(x)
    assert count == true_count
    assert mean.dtype == second.dtype == torch.float64
    # The float32 sums run over deviations from the mean, so the error is
    # relative to the spread, not to the mean. The mean's own float64
    # arithmetic is rounded relative to the mean.
    spread = (true_second / count).sqrt()
    bound = chain * U * spread + 4 * 2.0**-53 * true_mean.abs()
    assert ((mean - true_mean).abs() <= bound).all()
    # Each square comes with three roundings: x - origin, twice, and its own.
    # The square of a root is rounded too. The reference itself rounds
    # x - mean relative to the mean.
    bound = count * (2.0**-52 * true_mean).square()
    bound += (chain + 3 + (chain > 24) * 3) * U * true_second
    assert ((second - true_second).abs() <= bound).all()


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


def assert_packed(parts):
    """Sums of parts add up to those of the whole."""
    mean, var, count = moments.unpack(
        sum(moments.pack(*true_moments(part)) for part in parts)
    )
    true_count, true_mean, true_second = true_moments(torch.cat(parts))
    true_var = true_second / true_count
    size = true_mean.square() + true_var + 1
    assert count.item() == true_count
    assert ((mean - true_mean).abs() <= 2.0**-50 * size.sqrt()).all()
    assert ((var - true_var).abs() <= 8 * 2.0**-53 * size).all()
    assert (var >= 0).all()


@settings(max_examples=200)
@given(
    images=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    channels=st.integers(1, 7),
    spatial=st.sampled_from([(), (5,), (4, 3), (2, 3, 2)])
    | st.sampled_from([(length,) for length in LONG]),
    mean=st.sampled_from([0.0, -3.0, 1000.0, 1e6]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    layout=layouts,
    gradient=layouts | st.just('expanded'),
    block=st.sampled_from([1, 16, 1 << 20]),
    seed=st.integers(0, 2**16),
)
@example([2], 3, (60800,), 1e3, torch.float32, *2 * ['contiguous'], 1, 0)
def test_sums_of_each_rank_and_of_all_together(
    images, channels, spatial, mean, dtype, layout, gradient, block, seed
):
    generator = torch.Generator().manual_seed(seed)
    shape = sum(images), channels, *spatial
    x, dy = torch.randn(2, *shape, generator=generator)
    parts = (x + mean).to(dtype).split(images)
    # So many float32 additions may follow one another: all of a small input,
    # and else those in a piece, in 8 lanes or more, and the lanes' sums.
    small = len(spatial) != 1 or spatial == (5,)
    chain = 24 if small else blocks.LONGEST_PIECE // 8 + 8
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(blocks, 'CPU_BLOCK_ELEMENTS', block)
        for part, part_dy in zip(
            parts, dy.to(dtype).split(images), strict=True
        ):
            part = LAYOUTS[layout](part)
            assert_moments(part, chain)
            assert_gradient_sums(part, LAYOUTS[gradient](part_dy), chain)
    assert_packed(parts)


def test_local_moments_of_nothing_and_of_a_constant():
    for shape in [(0, 3), (0, 3, 4, 4), (2, 3, 0, 4)]:
        count, mean, second = plain.local_moments(torch.empty(shape))
        assert count == 0
        assert mean.tolist() == second.tolist() == [0.0] * 3
    x = torch.full((4, 2, 3, 3), 1234.567)
    _, mean, second = plain.local_moments(x)
    assert mean.tolist() == x[0, :, 0, 0].double().tolist()
    assert second.tolist() == [0.0, 0.0]
