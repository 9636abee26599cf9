# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The BatchNorm layers that are compared: ways to normalise a batch.

Plain BatchNorm is the limit without communication. With one rank the others
are measured on their synchronised paths, in a group of one, which layers leave
to ``F.batch_norm`` otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from mmdet_megdet.sync_bn import MegDetSyncBN
from mmdet_megdet.sync_bn.function import SyncBatchNormFunction
from mmdet_megdet.sync_bn.moments import Running
from mmdet_megdet.upstream.torch_names import synchronised_batch_norm


def ours(layer: MegDetSyncBN, x: Tensor) -> Tensor:
    """Normalise as ``MegDetSyncBN``."""
    if dist.get_world_size() > 1:
        return MegDetSyncBN.forward(layer, x)
    running = Running(
        layer.running_mean,
        layer.running_var,
        layer.num_batches_tracked,
        layer.momentum,
    )
    return SyncBatchNormFunction.apply(
        x, layer.weight, layer.bias, layer.eps, running, dist.group.WORLD
    )


class AllReduce(Function):
    """Sum over all ranks; so is the gradient's way back."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor) -> Tensor:
        """Return the sum of all ranks' vectors."""
        total = vector.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the sum of all ranks' gradients."""
        return AllReduce.forward(ctx, gradient)


def textbook(layer: nn.Module, x: Tensor) -> Tensor:
    """Normalise by the usual few lines: a differentiable all-reduce.

    Ranks weigh in equally and the variance is ``E[x^2] - E[x]^2`` in
    float32. That is right for equal batches of values near zero, which is
    what the benchmark feeds; it is here to be measured, not to be used.
    """
    wide = x.float()
    moments = torch.cat([wide.mean((0, 2, 3)), (wide * wide).mean((0, 2, 3))])
    moments = AllReduce.apply(moments) / dist.get_world_size()
    mean, square = moments.chunk(2)
    var = square - mean * mean
    scale = layer.weight * (var + layer.eps).rsqrt()
    shift = layer.bias - mean * scale
    with torch.no_grad():
        layer.running_mean.lerp_(mean, layer.momentum)
        layer.running_var.lerp_(var, layer.momentum)
    y = wide * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
    return y.to(x.dtype)


def torchs(layer: nn.Module, x: Tensor) -> Tensor:
    """Normalise as ``nn.SyncBatchNorm``."""
    layer.num_batches_tracked.add_(1)
    return synchronised_batch_norm(layer, x)


WAYS = {
    'plain': nn.BatchNorm2d.forward,
    'ours': ours,
    'textbook': textbook,
    'nn.SyncBatchNorm': torchs,
}


class SwitchedBN(MegDetSyncBN):
    """A layer in training mode that normalises in one of :data:`WAYS`."""

    way = 'plain'

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` of shape (N, C, H, W)."""
        return WAYS[self.way](self, input)


def ways_on(device: torch.device) -> list[str]:
    """Return the ways; that of ``nn.SyncBatchNorm`` needs a GPU."""
    return [*WAYS] if device.type == 'cuda' else [*WAYS][:-1]
