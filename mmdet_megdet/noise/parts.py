# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The parts of a model that are measured one by one."""

from __future__ import annotations

import math
from typing import Any

from mmengine.model import is_model_wrapper
from torch import nn

from ..monitor import is_foreign_sync
from ..sync_bn import MegDetSyncBN, world_size

TOTAL = 'total'
# Parameters that hang on the model itself.
_OWN = 'model'
# Its heads learn different things.
_DIVIDED = 'roi_head'


def parts_of(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the model's trained parameters by part, in the model's order.

    Parts are what hangs on the model, such as ``backbone``, ``neck`` and
    ``rpn_head``; and of a ``roi_head`` what hangs on that, such as
    ``roi_head.bbox_head``. Parameters that are shared belong to the first.
    """
    inner: Any = model
    while is_model_wrapper(inner):
        inner = inner.module
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in inner.named_parameters():
        if not parameter.requires_grad:
            continue
        *path, _ = name.split('.')
        depth = 2 if path[:1] == [_DIVIDED] else 1
        part = '.'.join(path[:depth]) or _OWN
        parts.setdefault(part, []).append(parameter)
    return parts


def coupled_ranks(model: nn.Module) -> int:
    """Return how many consecutive ranks depend on each other's images.

    That is a rank's own BN group, in the model's present mode. BatchNorm of
    other libraries is taken to synchronise all ranks.
    """
    ranks = 1
    for layer in model.modules():
        if not layer.training:
            continue
        if isinstance(layer, MegDetSyncBN):
            ranks = math.lcm(ranks, layer.ranks_per_group or world_size())
        elif is_foreign_sync(type(layer).__name__):
            ranks = world_size()
    return ranks
