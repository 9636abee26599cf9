# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layouts that the passes know: contiguous, and channels last."""

from __future__ import annotations

import torch
from torch import Tensor


def dense(x: Tensor) -> Tensor:
    """Return ``x`` if it is contiguous or channels last, else a copy."""
    if x.is_contiguous() or x.movedim(1, -1).is_contiguous():
        return x
    return x.contiguous()


def laid_out_as(tensor: Tensor, model: Tensor) -> Tensor:
    """Return ``tensor`` if its layout is the dense model's, else a copy."""
    steps = zip(model.shape, tensor.stride(), model.stride(), strict=True)
    if all(own == other for size, own, other in steps if size > 1):
        return tensor
    return torch.empty_like(model).copy_(tensor)
