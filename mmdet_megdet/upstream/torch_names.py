# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors in place, by few launches on a GPU."""
    if targets:
        torch._foreach_copy_(targets, sources)


@torch.no_grad()
def lerp_all(
    targets: Sequence[Tensor], ends: Sequence[Tensor], weight: float
) -> None:
    """Move tensors in place towards others, by few launches on a GPU."""
    if targets:
        torch._foreach_lerp_(targets, ends, weight)


@torch.no_grad()
def maximum_all(targets: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Take elementwise maxima in place, by few launches on a GPU."""
    if targets:
        torch._foreach_maximum_(targets, others)
