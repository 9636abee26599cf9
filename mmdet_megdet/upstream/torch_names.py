# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
)


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


def is_low_rank(model: nn.Module) -> bool:
    """Whether a DDP model sends its gradients through PowerSGD."""
    hooks = getattr(model, '_comm_hooks', ())
    return any(isinstance(state, PowerSGDState) for _, state in hooks)
