# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Synchronised batch normalisation as one autograd function."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .blocks import dense
from .moments import centre_parts, local_moments, pack, split_mean, unpack
from .observation import Observation
from .passes import (
    centre,
    gradient_sums,
    holds_centred,
    input_gradient,
    normalise,
)
from .recomputation import in_recomputation
from .reduction import all_reduce, start_all_reduce


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
    count stays on the device: nothing waits for the host. The first pass of
    the input's gradient is made while backward's is on its way. The gradients
    of weight and bias are left local, since DDP averages them.

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
        observer: Callable[[Observation], None] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalise ``x`` by the statistics of the group.

        Args:
            x (Tensor): Shape ``(N, C, *)``, any floating dtype.
            weight (Tensor, optional): Shape ``(C, )``.
            bias (Tensor, optional): Shape ``(C, )``.
            eps (float): Added to the variance.
            group (ProcessGroup): The ranks whose batches make one.
            observer (Callable, optional): Told the moments and the timing.

        Returns:
            tuple: The output in the dtype and layout of ``x``; then mean,
            biased variance and count of the group in float64, which carry
            no gradient.
        """
        x = dense(x)
        y = torch.empty_like(x)
        if x.numel():
            origins, *local = centre_parts(x, y if holds_centred(y) else None)
        else:
            local = local_moments(x)
        sums = pack(*local)
        timers = None if observer is None else []
        all_reduce(sums, group, timers)
        mean, var, count = unpack(sums)
        if observer is not None:
            observer(
                Observation(
                    *local, count, mean, var, timers, in_recomputation()
                )
            )
        invstd = (var + eps).rsqrt()

        scale = invstd if weight is None else invstd * weight
        if x.numel():
            shift = (origins - mean).mul_(scale)
            if bias is not None:
                shift += bias
            normalise(x, y, origins, scale, shift)

        origin, rest = split_mean(mean, x.dtype)
        ctx.group, ctx.timers = group, timers
        ctx.save_for_backward(x, origin, rest, scale, invstd, count)
        ctx.mark_non_differentiable(mean, var, count)
        ctx.set_materialize_grads(False)
        return y, mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        """Gradients of input (over the group), weight and bias (local)."""
        x, origin, rest, scale, invstd, count = ctx.saved_tensors
        if x.numel():
            sum_dy, sum_dy_d = gradient_sums(x, dy, origin)
            sum_dy_d.addcmul_(rest, sum_dy, value=-1)
        else:
            sum_dy, sum_dy_d = rest.new_zeros(2, len(rest))

        # Reduced even where this rank's input needs no gradient: that of
        # another rank may, and all have to make the same collectives.
        sums = torch.cat([sum_dy, sum_dy_d])
        wait = start_all_reduce(sums, ctx.group, ctx.timers)
        # What needs no sums is done while the other ranks send theirs.
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            if x.numel():
                centre(x, dx, origin)
        wait()
        if dx is not None and x.numel():
            mean_dy, mean_dy_d = (sums / count.clamp(min=1)).chunk(2)
            slope = invstd.square().mul_(mean_dy_d)
            shift = torch.addcmul(mean_dy, slope, rest, value=-1)
            input_gradient(x, dy, dx, origin, slope, shift, scale)
        # Autograd casts to the parameters' dtype.
        if ctx.needs_input_grad[1]:
            dweight = sum_dy_d * invstd
        if ctx.needs_input_grad[2]:
            dbias = sum_dy
        return dx, dweight, dbias, None, None, None
