# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A model's losses: which of them are no numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class NonFiniteLossError(RuntimeError):
    """A loss is NaN or infinite, on some rank."""


def named_losses(output: Any) -> dict[str, Tensor]:
    """What MMEngine's ``BaseModel.parse_losses`` sums up.

    Args:
        output (Any): What a model returned in mode 'loss': a mapping of
            tensors and lists of tensors, of which those with 'loss' in their
            name count.

    Returns:
        dict[str, Tensor]: Scalars by name, ``name[i]`` in lists; empty where
        the output is no mapping.
    """
    if not isinstance(output, Mapping):
        return {}
    found = {}
    for name, value in output.items():
        if 'loss' not in name:
            continue
        if isinstance(value, Tensor):
            found[name] = value.detach().float().mean()
            continue
        for index, part in enumerate(value):
            found[f'{name}[{index}]'] = part.detach().float().mean()
    return found


def not_finite(losses: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """Whether one of them, or their sum, is NaN or infinite.

    Returns:
        Tensor: int32 of shape (1,), 1 or 0, on the device; nothing waits
        for it.
    """
    if not losses:
        return torch.zeros(1, dtype=torch.int32, device=device)
    total = torch.stack(list(losses.values())).sum()
    return torch.isfinite(total).logical_not().int().reshape(1)


def describe_not_finite(losses: Mapping[str, Tensor]) -> str:
    """Names those that are NaN or infinite; empty where none is.

    Waits for the device.
    """
    values = {name: float(loss) for name, loss in losses.items()}
    values['the sum of losses'] = sum(values.values())
    texts = [
        f'{name} is {value:g}'
        for name, value in values.items()
        if not -_LARGEST <= value <= _LARGEST
    ]
    # The sum says something of its own only where all its parts are finite.
    return ', '.join(texts[:-1] or texts)


_LARGEST = torch.finfo(torch.float32).max
