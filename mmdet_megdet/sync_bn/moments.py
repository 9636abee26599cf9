# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Per-channel sums of one rank's batch and how ranks' sums combine.

Pure functions on tensors. ``x`` is always ``(N, C, *)``; its positions are
all elements of a channel, ``N`` times the spatial size. Large tensors are
read in chunks that fit a cache: what costs time is allocating full-size
temporaries, not arithmetic. Within a chunk sums are float32 (float64 for
float64 inputs) of *centred* values, chunks are added up in float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 20


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for float64: never the half formats."""
    return torch.promote_types(dtype, torch.float32)


def per_channel(vector: Tensor, x: Tensor) -> Tensor:
    """View a vector of length C so that it broadcasts over ``x``.

    Args:
        vector (Tensor): Shape ``(C, )``, any dtype.
        x (Tensor): Shape ``(N, C, *)``.

    Returns:
        Tensor: Shape ``(1, C, 1, ...)`` in the dtype ``x`` is computed in.
    """
    shape = (1, -1) + (1,) * (x.dim() - 2)
    return vector.to(compute_dtype(x.dtype)).view(shape)


def positions(x: Tensor) -> int:
    """Number of elements per channel."""
    return x.shape[0] * x[0:1, 0:1].numel() if x.numel() else 0


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut equally shaped non-empty tensors along the batch dimension.

    Yields:
        tuple[Tensor]: A work buffer in the dtype for computing, which the
        next chunk overwrites, then the tensors' parts.
    """
    x = tensors[0]
    images = max(1, CHUNK_ELEMENTS * len(x) // x.numel())
    work = torch.empty_like(x[:images], dtype=compute_dtype(x.dtype))
    for parts in zip(*(t.split(images) for t in tensors), strict=True):
        yield work[: len(parts[0])], *parts


def channel_sum(x: Tensor) -> Tensor:
    """Sum over all dimensions but the channel's, as float64 ``(C, )``."""
    dims = [0, *range(2, x.dim())]
    return x.sum(dims, dtype=compute_dtype(x.dtype)).double()


def split_mean(mean: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Split a float64 mean into what ``x`` can be centred by and the rest.

    ``x - rounded`` is (nearly) free of rounding where ``x`` is close to its
    mean, however large that is; ``rest`` then goes into a per-channel
    constant. So inputs far from zero lose nothing.

    Returns:
        tuple[Tensor, Tensor]: ``rounded`` in the dtype for computing and
        ``rest`` in float64, both ``(C, )``; their sum is ``mean``.
    """
    rounded = mean.to(compute_dtype(x.dtype))
    return rounded, mean - rounded


def local_moments(x: Tensor) -> tuple[int, Tensor, Tensor]:
    """Count, mean and centred second moment of one rank's batch.

    Args:
        x (Tensor): Shape ``(N, C, *)``, any floating dtype, may be empty.

    Returns:
        tuple: The number of positions, the mean, and the sum of squared
        deviations from it; the vectors are float64 ``(C, )``, zero where
        there is no position.
    """
    count = positions(x)
    zero = x.new_zeros(x.shape[1], dtype=torch.float64)
    if count == 0:
        return 0, zero, zero.clone()

    total = zero.clone()
    for _, part in chunks(x):
        total += channel_sum(part)
    origin, _ = split_mean(total / count, x)

    # The corrected two-pass algorithm: the first moment about the rounded
    # mean takes back what the rounding did to the second.
    first, second = zero, zero.clone()
    for work, part in chunks(x):
        torch.sub(part, per_channel(origin, x), out=work)
        first += channel_sum(work)
        second += channel_sum(work.square_())
    shift = first / count
    return count, origin + shift, (second - first * shift).clamp_(min=0)


def pack(count: int, mean: Tensor, second: Tensor) -> Tensor:
    """What a rank contributes to the group's sums.

    Returns:
        Tensor: float64 ``(2C + 1, )``: sum, sum of squares, count. Adding
        up those of all ranks gives that of the whole batch.
    """
    return torch.cat(
        [
            mean * count,
            second + mean.square() * count,
            mean.new_tensor([count]),
        ]
    )


def unpack(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The statistics of a whole batch from its sums.

    In float64 the mean square and the squared mean are each rounded to
    ``2^-53 * mean^2`` or so per operation, so the variance is exact to about
    ``8 * 2^-53 * mean^2``.

    Args:
        sums (Tensor): float64 ``(2C + 1, )`` as made by :func:`pack`.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Mean and biased variance ``(C, )``,
        and the count ``()``, all float64; zeros for an empty batch.
    """
    count = sums[-1]
    mean, mean_square = (sums[:-1] / count.clamp(min=1)).chunk(2)
    return mean, (mean_square - mean.square()).clamp_(min=0), count
