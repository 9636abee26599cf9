# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Synchronised batch normalisation as one autograd function."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import kernels
from .moments import Running, unpack
from .observation import CollectiveTimer, Observation

# How long a CPU rank lets other threads run before it goes to sleep. A rank
# that sleeps is late: gloo takes 0.7 ms for a few numbers, with a tail of
# 3 ms where ranks share CPUs, and 0.4 ms without the tail this way.
YIELD_SECONDS = 1e-3


class SyncBatchNormFunction(torch.autograd.Function):
    """Normalise a batch that is spread over the ranks of a group.

    With ``d = x - mean`` over all positions of the group, ``n`` of them, and
    ``s = 1 / sqrt(var + eps)``::

        y     = d * s * weight + bias
        dx    = s * weight * (dy - sum(dy) / n - d * s^2 * sum(dy * d) / n)
        dweight, dbias = s * sum_local(dy * d), sum_local(dy)

    Its collectives: forward adds up each rank's sums (float64, 2C + 1),
    backward ``sum(dy)`` and ``sum(dy * d)`` (float64, 2C). Both have the same
    size, dtype and meaning on every rank, whatever its input and whichever
    :mod:`.kernels` it runs, so an empty rank takes part like any other. The
    count stays on the device: nothing waits for the host. The gradients of
    weight and bias are left local, since DDP averages them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        running: Running | None,
        group: dist.ProcessGroup,
        observer: Callable[[Observation], None] | None = None,
    ) -> Tensor:
        """Normalise ``x``, ``(N, C, *)``, by the statistics of the group.

        The output has its dtype and layout. ``running`` is updated, and
        ``observer`` told the moments and the timing. Kept for backward are
        ``x`` and vectors ``(C, )``.
        """
        passes = kernels.choose(x, weight)
        x = passes.prepare(x)
        sums, work = passes.local_sums(x)
        timers: list[CollectiveTimer] | None = None
        if observer is None:
            all_reduce(sums, group, timers)
        else:
            local, timers = sums.clone(), []
            all_reduce(sums, group, timers)
            moments = unpack(local), unpack(sums)
            observer(Observation.of(x, *moments, timers))
        y, saved = passes.normalise(x, work, sums, weight, bias, eps, running)
        ctx.passes, ctx.group, ctx.timers = passes, group, timers
        ctx.dtypes = [p if p is None else p.dtype for p in (weight, bias)]
        ctx.save_for_backward(x, *saved)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of input (over the group), weight, bias (local)."""
        passes, (x, *saved) = ctx.passes, ctx.saved_tensors
        dy = passes.prepare(dy, x)
        wanted = zip(ctx.dtypes, ctx.needs_input_grad[1:3], strict=True)
        dtypes = [dtype if needed else None for dtype, needed in wanted]
        sums, dweight, dbias = passes.gradient_sums(x, dy, saved, *dtypes)
        # Reduced even where this rank's input needs no gradient: that of
        # another rank may, and all have to make the same collectives.
        wait = start_all_reduce(sums, ctx.group, ctx.timers)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = passes.begin_input_gradient(x, saved)
        wait()
        if dx is not None:
            passes.finish_input_gradient(x, dy, dx, saved, sums)
        return dx, dweight, dbias, None, None, None, None


def all_reduce(
    sums: Tensor,
    group: dist.ProcessGroup,
    timers: list[CollectiveTimer] | None,
) -> None:
    """Add up over the group, in place; see :func:`start_all_reduce`."""
    start_all_reduce(sums, group, timers)()


def start_all_reduce(
    sums: Tensor,
    group: dist.ProcessGroup,
    timers: list[CollectiveTimer] | None,
) -> Callable[[], None]:
    """Begin to add up over the group, in place.

    Return what waits until the sums are there, and adds its time to
    ``timers``. On a GPU it need not wait: what follows on the current stream
    comes after them.
    """
    timer = None
    if timers is not None:
        timer = CollectiveTimer(sums.device)
        timers.append(timer)
    if sums.device.type != 'cpu':
        with timer or nullcontext():
            dist.all_reduce(sums, group=group)
        return lambda: None
    work = dist.all_reduce(sums, group=group, async_op=True)

    def wait() -> None:
        with timer or nullcontext():
            deadline = time.perf_counter() + YIELD_SECONDS
            while not work.is_completed() and time.perf_counter() < deadline:
                os.sched_yield()
            work.wait()

    return wait
