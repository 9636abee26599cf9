# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The BatchNorm layers that are compared, all in training mode."""

from __future__ import annotations

from typing import Any

import measuring  # noqa: F401  (finds mmdet_megdet)
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from mmdet_megdet.sync_bn import MegDetSyncBN
from mmdet_megdet.sync_bn.function import SyncBatchNormFunction
from mmdet_megdet.sync_bn.moments import Running
from mmdet_megdet.upstream.torch_names import synchronised_batch_norm


class OneRankMegDetSyncBN(MegDetSyncBN):
    """``MegDetSyncBN`` on its synchronised path in a group of one rank.

    The layer itself leaves that case to ``F.batch_norm``, so what the
    synchronised path costs beyond communication could not be seen.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` of shape (N, C, H, W)."""
        running = Running(
            self.running_mean,
            self.running_var,
            self.num_batches_tracked,
            self.momentum,
        )
        return SyncBatchNormFunction.apply(
            input, self.weight, self.bias, self.eps, running, dist.group.WORLD
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


class Meet(Function):
    """The identity, at which ranks add up numbers that nobody uses.

    As many as ``MegDetSyncBN`` sends: ``2C + 1`` float64 numbers in forward
    and ``2C`` in backward.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return ``x``, once all ranks are here."""
        numbers = 2 * x.shape[1]
        ctx.sums = x.new_zeros(numbers, dtype=torch.float64)
        dist.all_reduce(ctx.sums.new_zeros(numbers + 1), group=MeetingBN.group)
        # A view could not be changed in place, as ReLU does.
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient, once all ranks are here."""
        dist.all_reduce(ctx.sums, group=MeetingBN.group)
        return gradient


class MeetingBN(nn.BatchNorm2d):
    """Plain BatchNorm at which ranks meet as often as synchronised ones do.

    It is here to be measured: what it costs beyond plain BatchNorm is
    waiting, which any layer pays that makes one collective each way.
    ``group`` is not the default one, in which DDP's collectives are.
    """

    group: dist.ProcessGroup | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` of shape (N, C, H, W) by this rank's batch."""
        return Meet.apply(super().forward(input))


class TextbookSyncBN(nn.BatchNorm2d):
    """The usual few lines: moments by a differentiable all-reduce.

    Ranks weigh in equally and the variance is ``E[x^2] - E[x]^2`` in
    float32. That is right for equal batches of values near zero, which is
    what the benchmark feeds; it is here to be measured, not to be used.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` of shape (N, C, H, W)."""
        x = input.float()
        moments = torch.cat([x.mean((0, 2, 3)), (x * x).mean((0, 2, 3))])
        moments = AllReduce.apply(moments) / dist.get_world_size()
        mean, square = moments.chunk(2)
        var = square - mean * mean
        scale = self.weight * (var + self.eps).rsqrt()
        shift = self.bias - mean * scale
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var, self.momentum)
        y = x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
        return y.to(input.dtype)


class TorchSyncBN(nn.SyncBatchNorm):
    """``nn.SyncBatchNorm``, synchronising in a group of one rank too."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` of shape (N, C, H, W), on a GPU."""
        self.num_batches_tracked.add_(1)
        return synchronised_batch_norm(self, input)


def layer_types(device: torch.device) -> dict[str, type[nn.Module]]:
    """Return the layers that are compared by name, the plain one first.

    Args:
        device (torch.device): ``nn.SyncBatchNorm`` takes part on GPUs alone.
    """
    alone = dist.get_world_size() == 1
    types: dict[str, type[nn.Module]] = dict(
        plain=nn.BatchNorm2d,
        ours=OneRankMegDetSyncBN if alone else MegDetSyncBN,
        textbook=TextbookSyncBN,
    )
    if device.type == 'cuda':
        types['nn.SyncBatchNorm'] = TorchSyncBN
    return types


def make_layers(channels: int, device: torch.device) -> dict[str, nn.Module]:
    """Return one of each, for so many channels."""
    types = layer_types(device)
    return {name: kind(channels).to(device) for name, kind in types.items()}
