# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Per-channel moments of one rank's batch and how ranks' moments combine.

Pure functions on tensors. ``x`` is always ``(N, C, *)``; its positions are
all elements of a channel, ``N`` times the spatial size. Within a block sums
are float32 (float64 for float64 inputs) of *centred* values; blocks are put
together in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import Blocks, compute_dtype


def split_mean(mean: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split a float64 mean into what an input can be centred by and the rest.

    ``x - rounded`` is (nearly) free of rounding where ``x`` is close to its
    mean, however large that is; ``rest`` then goes into a per-channel
    constant. So inputs far from zero lose nothing.

    Args:
        mean (Tensor): float64.
        dtype (torch.dtype): Of the input.

    Returns:
        tuple[Tensor, Tensor]: ``rounded`` in the dtype for computing and
        ``rest`` in float64; their sum is ``mean``.
    """
    rounded = mean.to(compute_dtype(dtype))
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
    if x.numel() == 0:
        zero = x.new_zeros(x.shape[1], dtype=torch.float64)
        return 0, zero, zero.clone()
    _, *moments = centre_parts(x, None)
    return tuple(moments)


def centre_parts(
    x: Tensor, out: Tensor | None
) -> tuple[Tensor, int, Tensor, Tensor]:
    """:func:`local_moments`, and the centred input that they are taken of.

    Args:
        x (Tensor): Dense and not empty.
        out (Tensor, optional): Where to leave ``x - origins``, like ``x`` but
            in the dtype for computing. None: nowhere.

    Returns:
        tuple: ``origins``, float64 ``(parts, C)``, the rounded mean of each
        part (see :class:`~.blocks.Blocks`); then count, mean and second.
    """
    blocks = Blocks(x)
    dim, pieces = blocks.dim, blocks.pieces
    parts = blocks.split(x)
    if out is None or not pieces:
        work = torch.empty_like(parts[0], dtype=blocks.dtype)
        works = [work[: len(part)] for part in parts]
    outs = works if out is None else blocks.split(out)
    origins, firsts, seconds = [], [], []
    # The corrected two-pass algorithm within a block: the first moment about
    # the rounded mean takes back what the rounding did to the second.
    for number, (block, centred) in enumerate(zip(parts, outs, strict=True)):
        origin = block.sum(dim, keepdim=True, dtype=blocks.dtype)
        origin /= block.shape[dim]
        torch.sub(block, origin, out=centred)
        origins.append(origin.flatten())
        firsts.append(centred.sum(dim))
        if pieces:
            rows = centred.view(-1, blocks.width // pieces)
            norms = torch.linalg.vector_norm(rows, dim=-1)
            second = norms.square_().view(-1, pieces).sum(-1)
        else:
            squares = torch.mul(centred, centred, out=works[number])
            second = squares.sum(dim)
        seconds.append(second)

    origin, first, second = blocks.per_channel(origins, firsts, seconds)
    counts = blocks.part_counts(x.device)
    shift = first / counts
    means = origin + shift
    mean = (means * (counts / blocks.count)).sum(0)
    second.addcmul_(first, shift, value=-1)
    deviation = means.sub_(mean)
    second.addcmul_(deviation, deviation * counts)
    return origin, blocks.count, mean, second.sum(0).clamp_(min=0)


def pack(count: int, mean: Tensor, second: Tensor) -> Tensor:
    """What a rank contributes to the group's sums.

    Returns:
        Tensor: float64 ``(2C + 1, )``: sum, sum of squares, count. Adding
        up those of all ranks gives that of the whole batch.
    """
    squares = torch.addcmul(second, mean, mean, value=count)
    # Filled on the device: a copy from the host would wait for it.
    return torch.cat([mean * count, squares, mean.new_full((1,), count)])


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
    var = torch.addcmul(mean_square, mean, mean, value=-1)
    return mean, var.clamp_(min=0), count
