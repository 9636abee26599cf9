# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set how many ranks make a BN group, in all layers of a model."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import torch
from torch import nn

from ..errors import ConfigError
from ..recipe import check_bn_size, ranks_per_group
from . import kernels
from .groups import bn_group, world_size
from .layer import MegDetSyncBN


def bn_sizes(
    model: nn.Module, bn_size: int | Literal['layers'] | None = 'layers'
) -> list[int | None]:
    """Return each ``MegDetSyncBN``'s BN size, or ``bn_size`` if given."""
    return [
        layer.bn_size if bn_size == 'layers' else bn_size
        for layer in model.modules()
        if isinstance(layer, MegDetSyncBN)
    ]


def resolve_bn_groups(
    model: nn.Module,
    images_per_gpu: int,
    bn_size: int | Literal['layers'] | None = 'layers',
    strict: bool = False,
) -> dict[int, int]:
    """Turn ``bn_size`` images into ranks, for every layer of a model.

    All ranks call it once before training; again if the number of images
    changes. It also makes the process groups, and on GPUs checks the kernels.
    What cannot be split so is a ConfigError, and nothing is changed.

    Args:
        model (nn.Module): A model, wrapped or not.
        images_per_gpu (int): Images that each rank sees at once.
        bn_size (int, optional): Overrides what the layers say; None stands
            for all ranks. Defaults to 'layers', which leaves it to them.
        strict (bool): For debugging, let every layer check in every call
            that all ranks of its group are in it, slowly. Defaults to False.

    Returns:
        dict[int, int]: How many layers have groups of how many ranks.
    """
    if images_per_gpu < 1:
        raise ConfigError(f'images_per_gpu={images_per_gpu} must be positive.')
    if bn_size != 'layers':
        check_bn_size(bn_size)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, MegDetSyncBN)
    }
    sizes = bn_sizes(model, bn_size)
    ranks = [ranks_per_group(s, images_per_gpu, world_size()) for s in sizes]
    dtypes = set()
    for (name, layer), size, number in zip(
        layers.items(), sizes, ranks, strict=True
    ):
        layer.bn_size, layer.ranks_per_group = size, number
        layer.strict_name = name if strict else None
        if number > 1:
            dtypes.add(kernels.dtype_of(layer.weight))
    device = next(model.parameters(), torch.empty(0)).device
    # One size after the other: all ranks have to do so in the same order.
    for number in sorted(set(ranks)):
        bn_group(number, device)
    kernels.load(device, dtypes)
    return dict(Counter(ranks))
