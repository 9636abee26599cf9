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

    That is the mean of the means and the mean of the variances over all
    ranks: what one BatchNorm keeps that is fed group by group. Where all
    ranks agree already the buffers stay as they are, bit for bit. One
    all-reduce in float64 for all models; all ranks call it with the same.
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
