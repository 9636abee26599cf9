# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a training step spends in BatchNorm's collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN

from .report import Finding, passed

_DOUBLE = 8  # bytes


class Layer(NamedTuple):
    """A synchronised layer.

    Attributes:
        features (int): C.
        forwards (int): Forwards of an iteration: 2 under activation
            checkpointing, which repeats it.
        bn_size (int, optional): Images of its statistics.
    """

    features: int
    forwards: int
    bn_size: int | None


def synced_layers(
    model: nn.Module, bn_size: int | Literal['layers'] | None = 'layers'
) -> list[Layer]:
    """The layers of a model in training mode that synchronise.

    Args:
        model (nn.Module): The model.
        bn_size (int, optional): Overrides what the layers say. Defaults to
            'layers', which leaves it to them.
    """
    # mmdet's backbones and their blocks both have it; the blocks are what is
    # computed again.
    marked = [n for n, m in model.named_modules() if _recomputes(m)]
    recomputed = [
        name
        for name in marked
        if not any(other.startswith(f'{name}.') for other in marked)
    ]
    return [
        Layer(
            layer.num_features,
            1 + any(name.startswith(f'{block}.') for block in recomputed),
            layer.bn_size if bn_size == 'layers' else bn_size,
        )
        for name, layer in model.named_modules()
        if isinstance(layer, MegDetSyncBN) and layer.training
    ]


def _recomputes(module: nn.Module) -> bool:
    return getattr(module, 'with_cp', False) is True


def step_seconds(
    layers: Sequence[Layer], latencies: dict[int, float]
) -> float:
    """Seconds of an iteration, each layer called once.

    Forward reduces 2C + 1 float64 numbers, backward 2C.

    Args:
        layers (Sequence[Layer]): The layers.
        latencies (dict[int, float]): Seconds of an all-reduce by bytes.
    """
    sizes, times = list(latencies), list(latencies.values())
    total = 0.0
    for layer in layers:
        forward = (2 * layer.features + 1) * _DOUBLE
        backward = 2 * layer.features * _DOUBLE
        for size, calls in ((forward, layer.forwards), (backward, 1)):
            total += calls * float(np.interp(size, sizes, times))
    return total


def describe(
    layers: Sequence[Layer], latencies: dict[int, float], group: str
) -> Iterator[Finding]:
    """The cost in words."""
    calls = sum(layer.forwards + 1 for layer in layers)
    again = sum(layer.forwards - 1 for layer in layers)
    seconds = step_seconds(layers, latencies)
    recomputed = f', {again} of them recomputed forwards' if again else ''
    yield passed(
        'cost of an iteration',
        f'{len(layers)} layers over {group}: {calls} all-reduces{recomputed}, '
        f'about {seconds * 1e3:.3g} ms, where ranks arrive together and a '
        'layer is called once',
    )
