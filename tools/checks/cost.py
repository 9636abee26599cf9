# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a config's training spends in BatchNorm's collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

from mmdet_megdet.recipe.plan import group_ranks
from mmdet_megdet.sync_bn import MegDetSyncBN

from .model import bn_size_of, build_model, check_batch_norm
from .plan import check_plan
from .report import Finding, failure, passed, reason

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


class Training(NamedTuple):
    """The part of a training that ranks have to do with each other.

    Attributes:
        groups (dict[int, list[Layer]]): The layers that synchronise, by the
            ranks of their BN groups.
        findings (list[Finding]): Of the model and the batch plan.
    """

    groups: dict[int, list[Layer]]
    findings: Sequence[Finding] = ()


def read_training(cfg: Any, world_size: int) -> Training:
    """Build the config's model and ask it.

    Only rank 0 does, so nothing that goes wrong may keep it from the others.

    Args:
        cfg (Config): With the images per GPU and the BN size of the run.
        world_size (int): Its ranks.
    """
    try:
        images = (cfg.get('train_dataloader') or {}).get('batch_size', 1)
        model = build_model(cfg)
        findings = [
            *check_batch_norm(model),
            *check_plan(cfg, model, world_size, None),
        ]
        groups: dict[int, list[Layer]] = {}
        for layer in synced_layers(model, bn_size_of(cfg)):
            ranks = group_ranks(layer.bn_size, images, world_size)
            if ranks is not None:
                groups.setdefault(ranks, []).append(layer)
    except Exception as error:
        text = f'cannot be built or asked: {reason(error)}'
        remedy = 'tools/doctor.py CONFIG says more.'
        return Training({world_size: []}, [failure('model', text, remedy)])
    return Training(groups or {world_size: []}, findings)


def synced_layers(
    model: nn.Module, bn_size: int | Literal['layers'] | None = 'layers'
) -> list[Layer]:
    """Return the layers of a model in training mode that synchronise.

    Args:
        model (nn.Module): The model.
        bn_size (int, optional): Overrides what the layers say. Defaults to
            'layers', which leaves it to them.
    """
    # mmdet's backbones and their blocks both have it; the blocks are what is
    # computed again.
    marked = [
        name
        for name, module in model.named_modules()
        if getattr(module, 'with_cp', False) is True
    ]
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


def step_seconds(
    layers: Sequence[Layer], latencies: dict[int, float]
) -> float:
    """Return the seconds of an iteration, each layer called once.

    Forward reduces 2C + 1 float64 numbers, backward 2C.

    Args:
        layers (Sequence[Layer]): The layers.
        latencies (dict[int, float]): Seconds of an all-reduce by bytes.
    """
    sizes, times = list(latencies), list(latencies.values())
    total = 0.0
    for layer in layers:
        backward = 2 * layer.features * _DOUBLE
        total += layer.forwards * np.interp(backward + _DOUBLE, sizes, times)
        total += np.interp(backward, sizes, times)
    return float(total)


def describe(
    layers: Sequence[Layer], latencies: dict[int, float], group: str
) -> Iterator[Finding]:
    """Tell what an iteration spends."""
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
