# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Combine the ranks' moments, and update running statistics."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

Moments = tuple[Tensor, Tensor, Tensor]


class Running(NamedTuple):
    """A layer's running mean, unbiased variance, and number of batches.

    And the weight of a new batch: None is that of the cumulative average.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor
    momentum: float | None


@lru_cache
def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or float64 for float64: never the half formats."""
    return torch.promote_types(dtype, torch.float32)


def split_mean(mean: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split a float64 mean into what an input can be centred by and the rest.

    ``x - rounded`` is (nearly) free of rounding where ``x`` is close to its
    mean, however large that is; ``rest``, in float64, then goes into a
    per-channel constant. So inputs far from zero lose nothing.
    """
    rounded = mean.to(compute_dtype(dtype))
    return rounded, mean - rounded


def pack(count: int, mean: Tensor, second: Tensor) -> Tensor:
    """Return a rank's sum, sum of squares, count: float64 ``(2C + 1, )``.

    Those of all ranks add up to those of the whole batch.
    """
    squares = torch.addcmul(second, mean, mean, value=count)
    # Filled on the device: a copy from the host would wait for it.
    return torch.cat([mean * count, squares, mean.new_full((1,), count)])


def unpack(sums: Tensor) -> Moments:
    """Return mean, biased variance and count of a batch from its sums.

    In float64 the mean square and the squared mean are each rounded to
    ``2^-53 * mean^2`` or so per operation, so the variance is exact to about
    ``8 * 2^-53 * mean^2``. All are zeros for an empty batch.
    """
    count = sums[-1]
    mean, mean_square = (sums[:-1] / count.clamp(min=1)).chunk(2)
    var = torch.addcmul(mean_square, mean, mean, value=-1)
    return mean, var.clamp_(min=0), count


def update_running(
    running: Running, mean: Tensor, var: Tensor, count: Tensor
) -> None:
    """Take what :func:`unpack` returned into running statistics, in place.

    Nothing changes where there is no position, nor does the variance where
    there is a single one. Decided on the device: nothing waits for the host.
    """
    running.batches.add_(count > 0)
    weight: float | Tensor
    if running.momentum is None:
        weight = running.batches.clamp(min=1).double().reciprocal()
    else:
        weight = running.momentum
    unbiased = var * (count / (count - 1).clamp(min=1))
    pairs = (running.mean, mean, 1), (running.var, unbiased, 2)
    for kept, batch, least in pairs:
        updated = torch.lerp(kept.double(), batch, weight)
        kept.copy_(torch.where(count >= least, updated, kept))
