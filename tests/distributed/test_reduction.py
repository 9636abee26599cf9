# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The all-reduce that is begun and waited for later."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from mmdet_megdet.sync_bn import function
from tests.distributed.ranks import run_ranks

LATE = 0.3


def sums_of_a_late_rank(rank, world_size, pause):
    """Rank 1 comes later than rank 0 is ready to stay awake."""
    sums = torch.full((3,), rank + 1.0, dtype=torch.float64)
    timers = []
    dist.barrier()
    if rank == 1:
        time.sleep(LATE)
    wait = function.start_all_reduce(sums, dist.group.WORLD, timers)
    time.sleep(pause)
    wait()
    (timer,) = timers
    return sums.tolist(), timer.seconds()


@pytest.mark.parametrize('pause', [0, 2 * LATE])
def test_sums_and_time_beside_a_late_rank(pause):
    first, late = run_ranks(sums_of_a_late_rank, 2, pause)
    assert first[0] == late[0] == [3.0] * 3
    # What is done meanwhile is no waiting.
    assert (first[1] > LATE / 2) == (pause == 0)
    assert late[1] < LATE / 2


def fails(rank, world_size):
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        wait = function.start_all_reduce(torch.zeros(2), group, None)
        with pytest.raises(RuntimeError, match=r'Timed out|closed by peer'):
            wait()


def test_the_error_of_a_collective_is_raised_by_the_wait():
    run_ranks(fails, 2)
