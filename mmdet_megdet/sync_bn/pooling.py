# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Pooling of running statistics over BN groups."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .groups import world_size
from .layer import MegDetSyncBN


@torch.no_grad()
def pool_running_stats(*models: nn.Module) -> None:
    """Give all ranks the running statistics of all BN groups together.

    With several BN groups each group's buffers follow its own images. This
    replaces them by the mean of the means and the mean of the variances over
    all ranks. Where all ranks agree already the buffers stay as they are, bit
    for bit. Training does not notice: it normalises by the batch.

    Buffers are moving averages, linear in the statistics of the batches, so
    the result does not depend on when and how often they are pooled: it is
    what one BatchNorm keeps that is fed group by group. The variance between
    the groups' means is in no term, as it is in none of that BatchNorm's.

    One all-reduce of float64 numbers for everything given, whatever the
    number of layers. All ranks call it with the same models.

    Args:
        *models (nn.Module): For instance a model and its EMA copy.
    """
    ranks = world_size()
    layers = [
        layer
        for model in models
        for layer in model.modules()
        if isinstance(layer, MegDetSyncBN) and layer.track_running_stats
    ]
    if ranks == 1 or not layers:
        return
    means = _flat([layer.running_mean for layer in layers])
    counts = _flat([layer.num_batches_tracked for layer in layers])
    variances = _flat([layer.running_var for layer in layers])
    sums = torch.cat([means, variances, counts])
    dist.all_reduce(sums)

    sizes = [len(means), len(variances), len(counts)]
    mean, variance, count = (sums / ranks).split(sizes)
    _scatter(mean, [layer.running_mean for layer in layers])
    _scatter(variance, [layer.running_var for layer in layers])
    _scatter(count.round(), [layer.num_batches_tracked for layer in layers])


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def _scatter(flat: Tensor, tensors: list[Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
