# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Synchronised batch normalisation as one autograd function."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .moments import (
    channel_sum,
    chunks,
    local_moments,
    pack,
    per_channel,
    split_mean,
    unpack,
)


class SyncBatchNormFunction(torch.autograd.Function):
    """Normalise a batch that is spread over the ranks of a group.

    With ``d = x - mean`` over all positions of the group, ``n`` of them, and
    ``s = 1 / sqrt(var + eps)``::

        y     = d * s * weight + bias
        dx    = s * weight * (dy - sum(dy) / n - d * s^2 * sum(dy * d) / n)
        dweight, dbias = s * sum_local(dy * d), sum_local(dy)

    The story of its collectives: forward adds up each rank's sums (float64,
    2C + 1), backward adds up ``sum(dy)`` and ``sum(dy * d)`` (float64, 2C).
    Both have the same size and dtype on every rank, whatever its input's
    dtype, layout and size, so an empty rank takes part like any other. The
    count stays on the device: nothing waits for the host. The gradients of
    weight and bias are left local, since DDP averages them.

    Kept for backward: the input and per-channel vectors.
    """

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalise ``x`` by the statistics of the group.

        Args:
            x (Tensor): Shape ``(N, C, *)``, any floating dtype.
            weight (Tensor, optional): Shape ``(C, )``.
            bias (Tensor, optional): Shape ``(C, )``.
            eps (float): Added to the variance.
            group (ProcessGroup): The ranks whose batches make one.

        Returns:
            tuple: The output in the dtype and layout of ``x``; then mean,
            biased variance and count of the group in float64, which carry
            no gradient.
        """
        sums = pack(*local_moments(x))
        dist.all_reduce(sums, group=group)
        mean, var, count = unpack(sums)
        invstd = (var + eps).rsqrt()

        scale = invstd if weight is None else invstd * weight
        origin, rest = split_mean(mean, x)
        shift = -rest * scale if bias is None else bias - rest * scale
        y = torch.empty_like(x)
        if x.numel():
            origin, scale, shift = (
                per_channel(v, x) for v in (origin, scale, shift)
            )
            for work, x_part, y_part in chunks(x, y):
                torch.sub(x_part, origin, out=work)
                y_part.copy_(work.mul_(scale).add_(shift))

        ctx.group = group
        ctx.save_for_backward(x, weight, bias, mean, invstd, count)
        ctx.mark_non_differentiable(mean, var, count)
        return y, mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        """Gradients of input (over the group), weight and bias (local)."""
        x, weight, bias, mean, invstd, count = ctx.saved_tensors
        origin, rest = split_mean(mean, x)

        sum_dy = x.new_zeros(x.shape[1], dtype=torch.float64)
        sum_dy_d = sum_dy.clone()
        if x.numel():
            centre = per_channel(origin, x)
            for work, x_part, dy_part in chunks(x, dy):
                sum_dy += channel_sum(dy_part)
                torch.sub(x_part, centre, out=work)
                sum_dy_d += channel_sum(work.mul_(dy_part))
            sum_dy_d -= rest * sum_dy

        # Reduced even where this rank's input needs no gradient: that of
        # another rank may, and all have to make the same collectives.
        sums = torch.cat([sum_dy, sum_dy_d])
        dist.all_reduce(sums, group=ctx.group)
        mean_dy, mean_dy_d = (sums / count.clamp(min=1)).chunk(2)

        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
        if dx is not None and x.numel():
            scale = invstd if weight is None else invstd * weight
            slope = -invstd.square() * mean_dy_d
            slope, shift, scale = (
                per_channel(v, x)
                for v in (slope, -mean_dy - slope * rest, scale)
            )
            for work, x_part, dy_part, dx_part in chunks(x, dy, dx):
                torch.sub(x_part, centre, out=work)
                work.mul_(slope).add_(dy_part).add_(shift)
                dx_part.copy_(work.mul_(scale))
        if ctx.needs_input_grad[1]:
            dweight = (sum_dy_d * invstd).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            dbias = sum_dy.to(bias.dtype)
        return dx, dweight, dbias, None, None
