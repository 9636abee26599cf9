# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Telling a model's layers how many ranks make a BN group."""

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
    """Return the BN size of each ``MegDetSyncBN`` of a model, in images.

    Args:
        model (nn.Module): A model, wrapped or not.
        bn_size (int, optional): Overrides what the layers say. Defaults to
            'layers', which leaves it to them.

    Returns:
        list: One entry per layer, in the order of ``model.modules()``.
    """
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

    All ranks call it once, after the process group is initialised and before
    training; again if the number of images changes. It also makes the
    process groups, those of one size after those of another, so that all
    ranks do so in the same order, and on GPUs compiles and checks the
    layers' kernels.

    Args:
        model (nn.Module): A model, wrapped or not.
        images_per_gpu (int): Images that each rank sees at once.
        bn_size (int, optional): Overrides what the layers say; None stands
            for all ranks. Defaults to 'layers', which leaves it to them.
        strict (bool): For debugging, let every layer check in every call
            that all ranks of its group are in the same layer, at the price
            of a small collective and a host synchronisation. Defaults to
            False.

    Returns:
        dict[int, int]: Ranks per group, and how many layers have such groups.

    Raises:
        ConfigError: If the ranks cannot be split so. Nothing is changed then.
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
    for (name, layer), size, number in zip(
        layers.items(), sizes, ranks, strict=True
    ):
        layer.bn_size, layer.ranks_per_group = size, number
        layer.strict_name = name if strict else None
    device = next(model.parameters(), torch.empty(0)).device
    for number in sorted(set(ranks)):
        bn_group(number, device)
    kernels.load(
        device,
        {
            kernels.dtype_of(layer.weight)
            for layer in layers.values()
            if layer.ranks_per_group != 1
        },
    )
    return dict(Counter(ranks))
