# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The sums of the forward pass against float64 on the same numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn.kernels import blocks, plain

# Unit roundoff of float32. In a sum over the positions of one of the small
# inputs below, at most 24 float32 additions follow one another.
U = 2.0**-24
CHAIN = 24


def reference(x):
    x = x.double().transpose(0, 1).flatten(1)
    mean = x.mean(1)
    return x.shape[1], mean, (x - mean[:, None]).square().sum(1)


def assert_moments(x, chain=CHAIN):
    count, mean, second = plain.local_moments(x)
    true_count, true_mean, true_second = reference(x)
    assert count == true_count
    assert mean.dtype == second.dtype == torch.float64
    # The float32 sums run over deviations from the mean, so the error is
    # relative to the spread, not to the mean. The mean's own float64
    # arithmetic is rounded relative to the mean.
    spread = (true_second / true_count).sqrt()
    assert (
        (mean - true_mean).abs()
        <= chain * U * spread + 4 * 2.0**-53 * true_mean.abs()
    ).all()
    # Each square comes with three roundings: x - origin, twice, and its own.
    # The reference itself rounds x - mean relative to the mean.
    assert (
        (second - true_second).abs()
        <= (chain + 3) * U * true_second
        + true_count * (2.0**-52 * true_mean).square()
    ).all()


@settings(max_examples=60)
@given(
    images=st.integers(1, 6),
    channels=st.integers(1, 7),
    spatial=st.sampled_from([(), (5,), (4, 3), (2, 3, 2)]),
    mean=st.sampled_from([0.0, -3.0, 1000.0, 1e6]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    block=st.sampled_from([1, 16, 1 << 20]),
    seed=st.integers(0, 2**16),
)
def test_local_moments(images, channels, spatial, mean, dtype, block, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, channels, *spatial, generator=generator)
    x = (x + mean).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, 'CPU_BLOCK_ELEMENTS', block)
        assert_moments(x)


@settings(max_examples=30)
@given(
    shape=st.sampled_from(
        [(3, 4), (2, 3, 7, 5), (2, 3, 32, 33), (1, 2, 1031)]
    ),
    channels_last=st.booleans(),
    block=st.sampled_from([1, 100, 1 << 20]),
    seed=st.integers(0, 2**16),
)
def test_the_centred_input_is_left_behind(shape, channels_last, block, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) + 1000
    if channels_last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    out = torch.empty_like(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, 'CPU_BLOCK_ELEMENTS', block)
        origins, count, mean, second = plain.centre_parts(x, out)
        parts = blocks.Blocks(x)
        rows = zip(parts.split(x), parts.split_vectors(origins), strict=True)
        true = [block.double() - origin.double() for block, (origin,) in rows]
        found = [block.double() for block in parts.split(out)]
        again = plain.local_moments(x)
    # Numbers so close to their mean are subtracted without rounding.
    assert all(map(torch.equal, found, true))
    assert count == again[0]
    assert torch.equal(mean, again[1])
    assert torch.equal(second, again[2])
    assert (origins - mean).abs().max() < 10


@pytest.mark.parametrize(
    'layout', [torch.contiguous_format, torch.channels_last]
)
def test_local_moments_of_layouts(layout):
    x = torch.randn(3, 6, 4, 5).to(memory_format=layout) + 1000
    assert_moments(x)
    assert_moments(x[:, ::2])
    assert_moments(x.transpose(2, 3))


@pytest.mark.parametrize('length', [247, 950, 1031, 15200, 60800])
@pytest.mark.parametrize('mean', [0, 1000])
def test_local_moments_of_long_rows(length, mean):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, length, generator=generator) + mean
    # No more additions in a row than in a piece, in 8 lanes or more; then
    # the lanes' sums, and the square of a root.
    assert_moments(x, chain=blocks.LONGEST_PIECE // 8 + 8 + 3)


def test_local_moments_of_nothing():
    for shape in [(0, 3), (0, 3, 4, 4), (2, 3, 0, 4)]:
        count, mean, second = plain.local_moments(torch.empty(shape))
        assert count == 0
        assert mean.tolist() == second.tolist() == [0.0] * 3


def test_a_constant_channel_has_no_variance():
    x = torch.full((4, 2, 3, 3), 1234.567)
    _, mean, second = plain.local_moments(x)
    assert mean.tolist() == x[0, :, 0, 0].double().tolist()
    assert second.tolist() == [0.0, 0.0]
