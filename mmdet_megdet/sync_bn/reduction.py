# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The all-reduce of a layer: begun, and waited for when it is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from torch import Tensor

from .observation import CollectiveTimer

# How long a CPU rank lets other threads run before it goes to sleep. A rank
# that sleeps is late: gloo takes 0.7 ms for a few numbers, with a tail of
# 3 ms where ranks share CPUs, and 0.4 ms without the tail this way (two ranks
# on two CPUs).
YIELD_SECONDS = 1e-3


def start_all_reduce(
    sums: Tensor,
    group: dist.ProcessGroup,
    timers: list[CollectiveTimer] | None,
) -> Callable[[], None]:
    """Begin to add up over the group, in place.

    On a GPU it runs on the current stream, where it needs no event to wait
    for: what follows on the stream comes after it.

    Args:
        sums (Tensor): This rank's; not to be used until the wait is over.
        group (ProcessGroup): The ranks that take part.
        timers (list, optional): Takes the timer of the wait.

    Returns:
        Callable: Waits until the sums are there; on a GPU it need not.
    """
    if sums.device.type != 'cpu':
        with _timed(sums, timers):
            dist.all_reduce(sums, group=group)
        return lambda: None
    work = dist.all_reduce(sums, group=group, async_op=True)

    def wait() -> None:
        with _timed(sums, timers):
            _yield_until_done(work)
            work.wait()

    return wait


def all_reduce(
    sums: Tensor,
    group: dist.ProcessGroup,
    timers: list[CollectiveTimer] | None,
) -> None:
    """:func:`start_all_reduce`, and wait for it."""
    start_all_reduce(sums, group, timers)()


def _timed(
    sums: Tensor, timers: list[CollectiveTimer] | None
) -> AbstractContextManager:
    if timers is None:
        return nullcontext()
    timers.append(CollectiveTimer(sums.device))
    return timers[-1]


def _yield_until_done(work: dist.Work) -> None:
    deadline = time.perf_counter() + YIELD_SECONDS
    while not work.is_completed() and time.perf_counter() < deadline:
        os.sched_yield()
