# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Pooling of running statistics over BN groups."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

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
    buffers = [
        getattr(layer, name)
        for name in ('running_mean', 'running_var', 'num_batches_tracked')
        for model in models
        for layer in model.modules()
        if isinstance(layer, MegDetSyncBN) and layer.track_running_stats
    ]
    if ranks == 1 or not buffers:
        return
    sums = torch.cat([buffer.double().flatten() for buffer in buffers])
    dist.all_reduce(sums)
    means = (sums / ranks).split([buffer.numel() for buffer in buffers])
    for buffer, mean in zip(buffers, means, strict=True):
        whole = not buffer.is_floating_point()
        buffer.copy_((mean.round() if whole else mean).view_as(buffer))
