# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The all-reduce of a layer: begun, and waited for when it is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

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

    Args:
        sums (Tensor): This rank's; not to be used until the wait is over.
        group (ProcessGroup): The ranks that take part.
        timers (list, optional): Takes the timer of the wait.

    Returns:
        Callable: Waits until the sums are there. On CUDA the current stream
        does, not the host.
    """
    work = dist.all_reduce(sums, group=group, async_op=True)

    def wait() -> None:
        if not sums.is_cuda:
            _yield_until_done(work)
        work.wait()

    def timed_wait() -> None:
        with CollectiveTimer(sums.device) as timer:
            wait()
        timers.append(timer)

    return wait if timers is None else timed_wait


def all_reduce(
    sums: Tensor,
    group: dist.ProcessGroup,
    timers: list[CollectiveTimer] | None,
) -> None:
    """:func:`start_all_reduce`, and wait for it."""
    start_all_reduce(sums, group, timers)()


def _yield_until_done(work: dist.Work) -> None:
    deadline = time.perf_counter() + YIELD_SECONDS
    while not work.is_completed() and time.perf_counter() < deadline:
        os.sched_yield()
