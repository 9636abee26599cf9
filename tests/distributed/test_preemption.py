# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""SIGTERM: one checkpoint, one status, and on with the next batch."""

from __future__ import annotations

import signal

import pytest
import torch

from mmdet_megdet.faults import latest_checkpoint
from tests.distributed.faults import Run, assert_same_end, diary, resume, send

pytestmark = pytest.mark.slow


def test_sigterm_to_one_rank_started_alone(tmp_path, undisturbed):
    """As under srun: each rank's own status. One of them gets the signal.

    It comes ahead of update 5 of 12, which is the first of the second
    epoch's four, and is finished.
    """
    statuses, logs = Run(
        tmp_path,
        default_hooks__fault__place='batch',
        default_hooks__fault__iteration=4,
        default_hooks__fault__rank=1,
        default_hooks__fault__signal='SIGTERM',
    ).finish()
    assert statuses == [75, 75]
    path = tmp_path / 'iter_5.pth'
    said = f'rank 1 got SIGTERM. All ranks stop after iteration 5 with {path}'
    assert said in logs[0]
    assert 'Traceback' not in ''.join(logs)

    assert latest_checkpoint(tmp_path) == str(path)
    assert 'Epoch(train) [2][2/4]' in resume(tmp_path)

    # The images of every micro-step, and what became of them.
    for rank in range(2):
        assert diary(tmp_path, rank) == diary(undisturbed, rank)
        assert len(diary(tmp_path, rank)) == 24
    assert_same_end(tmp_path, undisturbed)
    # Where the epoch's checkpoint is, that inside it is not needed.
    assert not path.exists()
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_3.pth')


def test_sigterm_to_torchrun_and_to_data_workers(tmp_path):
    """Slurm's way: every process of the job gets it, workers included.

    Each rank is a BN group of its own here.
    """
    training = Run(
        tmp_path,
        torchrun=True,
        default_hooks__wait__places='[(4, 2)]',
        model__norm_cfg__bn_size=4,
    )
    for rank in range(2):
        training.wait_for(f'waiting_{rank}')
    processes = training.descendants()
    # torchrun, two ranks and a worker of each.
    assert len(processes) >= 5
    send(processes[::-1], signal.SIGTERM)
    statuses, (log,) = training.finish()
    assert statuses == [1]  # torchrun's own, whatever the ranks say
    assert 'All ranks stop after iteration 5 with' in log
    assert 'DataLoader worker' not in log
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_5.pth')

    means = [torch.load(tmp_path / f'mean_{rank}.pt') for rank in range(2)]
    assert not torch.equal(*means)
    pooled = torch.stack(means).double().mean(0).float()
    state = torch.load(tmp_path / 'iter_5.pth')['state_dict']
    assert torch.equal(state['norm.running_mean'], pooled)
