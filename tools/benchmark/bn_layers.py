# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The BatchNorm layers that are compared, all in training mode."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules._functions import SyncBatchNorm as TorchFunction

from mmdet_megdet.sync_bn import MegDetSyncBN
from mmdet_megdet.sync_bn.groups import bn_group


class OneRankMegDetSyncBN(MegDetSyncBN):
    """``MegDetSyncBN`` on its synchronised path in a group of one rank.

    The layer itself leaves that case to ``F.batch_norm``, so what the
    synchronised path costs beyond communication could not be seen.
    """

    def _synchronises(self) -> bool:
        return True

    def _group(self, device: torch.device) -> dist.ProcessGroup:
        return dist.group.WORLD


class AllReduce(Function):
    """Sum over all ranks; so is the gradient's way back."""

    @staticmethod
    def forward(ctx, vector: Tensor) -> Tensor:
        """The sum of all ranks' vectors."""
        total = vector.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        """The sum of all ranks' gradients."""
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Meet(Function):
    """The identity, at which ranks add up numbers that nobody uses.

    As many as ``MegDetSyncBN`` sends: ``2C + 1`` float64 numbers in forward
    and ``2C`` in backward.
    """

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """``x``, once all ranks are here."""
        ctx.group, numbers = group, 2 * x.shape[1]
        ctx.sums = x.new_zeros(numbers, dtype=torch.float64)
        dist.all_reduce(ctx.sums.new_zeros(numbers + 1), group=group)
        # A view could not be changed in place, as ReLU does.
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient, once all ranks are here."""
        dist.all_reduce(ctx.sums, group=ctx.group)
        return gradient, None


class MeetingBN(nn.BatchNorm2d):
    """Plain BatchNorm at which ranks meet as often as synchronised ones do.

    It is here to be measured: what it costs beyond plain BatchNorm is
    waiting, which any layer pays that makes one collective each way.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` of shape (N, C, H, W) by this rank's batch."""
        return Meet.apply(super().forward(input), bn_group(None, input.device))


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
        mean, mean_square = moments.chunk(2)
        var = mean_square - mean * mean
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
        return TorchFunction.apply(
            input,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            self.momentum,
            dist.group.WORLD,
            dist.get_world_size(),
        )


def make_layers(channels: int, device: torch.device) -> dict[str, nn.Module]:
    """The layers by the name that the tables show, the plain one first.

    Args:
        channels (int): Number of features.
        device (torch.device): ``nn.SyncBatchNorm`` takes part on GPUs alone.
    """
    alone = dist.get_world_size() == 1
    types = dict(
        plain=nn.BatchNorm2d,
        ours=OneRankMegDetSyncBN if alone else MegDetSyncBN,
        textbook=TextbookSyncBN,
    )
    if device.type == 'cuda':
        types['nn.SyncBatchNorm'] = TorchSyncBN
    return {name: kind(channels).to(device) for name, kind in types.items()}
