# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Ranks that are killed, stopped, told to end, or fail on their way."""

import re
import signal
import sys

import pytest
import torch

from mmdet_megdet.faults import latest_checkpoint
from tests.distributed.faults import (
    Run,
    assert_same_end,
    diary,
    fault,
    send,
    train,
)
from tests.tools.command import PATIENCE, ROOT, run

# Of collectives, in seconds; ranks must also have met by then. The others know
# of a lost one at a fifth.
TIMEOUT = 20
PLACE = 'epoch 2, update 2 of 4, micro-step 1 of 2 (backward)'
# A thread tells the step: on a busy machine perhaps only the one before.
GONE = re.compile(
    r'rank 1: no sign of life \(killed, stopped or cut off\), last heard of '
    'in epoch 2, update (1 of 4, micro-step 2|2 of 4, micro-step 1) of 2'
)


def in_backward(**options):
    """A fault at that place."""
    settings = fault('backward', iteration=5, **options)
    return settings | dict(env_cfg__dist_cfg__timeout=TIMEOUT)


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
    """The folder of a run to which nothing happened."""
    work_dir = tmp_path_factory.mktemp('undisturbed')
    train(work_dir)
    return work_dir


@pytest.mark.slow
def test_a_rank_killed_under_torchrun(tmp_path, undisturbed):
    """The other one says who is gone, and the run can be continued."""
    run = Run(tmp_path, torchrun=True, **in_backward(rank=1))
    statuses, (log,) = run.finish()
    assert statuses == [1]
    # It fails by itself, or is asked to end by torchrun, whichever is first.
    fails = f'rank 0 of 2 fails in {PLACE}'
    ends = f'rank 0 got SIGTERM and ends without a checkpoint, in {PLACE}'
    assert (fails in log) or (ends in log)
    assert GONE.search(log)

    assert 'resumed epoch: 1, iter: 4' in train(tmp_path, '--resume')
    assert_same_end(tmp_path, undisturbed)


def test_the_rank_that_holds_the_store_killed(tmp_path):
    """Ranks started one by one, as srun does: rank 0 holds the store."""
    statuses, (_, log) = Run(tmp_path, **in_backward()).finish()
    assert statuses == [-signal.SIGKILL, 69]
    assert f'rank 1 of 2 fails in {PLACE}' in log
    assert 'The store of rank 0' in log
    assert 'rank 0 is gone, stopped or cut off' in log


@pytest.mark.slow
def test_a_stopped_rank(tmp_path):
    """The others say why at half of the timeout, and end by it."""
    training = Run(tmp_path, **in_backward(rank=1, signal='SIGSTOP'))
    training.processes[0].wait(PATIENCE)
    # What srun and torchrun do when a rank has failed.
    send(training.descendants(), signal.SIGKILL)
    statuses, (log, _) = training.finish()
    assert statuses == [69, -signal.SIGKILL]
    early = log.index(f'rank 0 has been in {PLACE} for ')
    assert f'of {TIMEOUT} s (env_cfg.dist_cfg.timeout)' in log[early:]
    late = log.index(f'rank 0 of 2 fails in {PLACE}')
    assert early < late
    assert GONE.search(log, early, late)
    assert GONE.search(log, late)


@pytest.mark.slow
def test_killed_while_a_checkpoint_is_written(tmp_path, undisturbed):
    """That of the second epoch; with MMEngine's hook the first were gone."""
    settings = fault('save', iteration=8)
    settings |= dict(default_hooks__checkpoint__max_keep_ckpts=1)
    Run(tmp_path, torchrun=True, **settings).finish()
    assert not (tmp_path / 'epoch_2.pth').exists()
    assert (tmp_path / 'epoch_2.pth.unfinished').exists()
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_1.pth')

    log = train(tmp_path, '--resume')
    assert 'epoch_2.pth was cut off while an earlier run wrote it' in log
    assert not (tmp_path / 'epoch_2.pth.unfinished').exists()
    assert_same_end(tmp_path, undisturbed)


def test_a_rank_that_fails_is_named_by_the_others(tmp_path):
    """Its own words, not only 'connection closed'."""
    statuses, logs = Run(tmp_path, model__fail_on=1).finish()
    assert statuses == [69, 1]
    place = 'epoch 1, update 1 of 4, micro-step 1 of 2 (forward)'
    error = 'RuntimeError: failing as the test asked for'
    assert f'rank 1 of 2 fails in {place}: {error}' in logs[1]
    assert f'rank 0 of 2 fails in {place}: ' in logs[0]
    assert f'rank 1: failed in {place}: {error}' in logs[0]


@pytest.mark.slow
def test_sigterm_to_one_rank_started_alone(tmp_path, undisturbed):
    """As under srun: each rank's own status. One of them gets the signal.

    It comes ahead of update 5 of 12, which is the first of the second
    epoch's four, and is finished.
    """
    settings = fault('batch', iteration=4, rank=1, signal='SIGTERM')
    statuses, logs = Run(tmp_path, **settings).finish()
    assert statuses == [75, 75]
    path = tmp_path / 'iter_5.pth'
    said = f'rank 1 got SIGTERM. All ranks stop after iteration 5 with {path}'
    assert said in logs[0]
    assert 'Traceback' not in ''.join(logs)

    assert latest_checkpoint(tmp_path) == str(path)
    assert 'Epoch(train) [2][2/4]' in train(tmp_path, '--resume')

    # The images of every micro-step, and what became of them.
    for rank in range(2):
        assert diary(tmp_path, rank) == diary(undisturbed, rank)
        assert len(diary(tmp_path, rank)) == 24
    assert_same_end(tmp_path, undisturbed)
    # Where the epoch's checkpoint is, that inside it is not needed.
    assert not path.exists()
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_3.pth')


@pytest.mark.slow
def test_sigterm_to_torchrun_and_to_data_workers(tmp_path):
    """Slurm's way: every process of the job gets it, workers included.

    Each rank is a BN group of its own here.
    """
    wait = dict(default_hooks__wait__places='[(4, 2)]')
    training = Run(tmp_path, torchrun=True, model__norm_cfg__bn_size=4, **wait)
    for rank in range(2):
        training.wait_for(f'waiting_{rank}')
    torchrun, *below = training.descendants()
    ranks = [p for p in below if p.ppid() == torchrun.pid]
    workers = [p for p in below if p not in ranks]
    assert len(ranks) == 2 <= len(workers)
    # The ranks last, so that torchrun is still waiting for them.
    send([*workers, torchrun, *ranks], signal.SIGTERM)
    statuses, (log,) = training.finish()
    assert statuses == [1], log  # torchrun's own, whatever the ranks say
    assert 'All ranks stop after iteration 5 with' in log
    assert 'DataLoader worker' not in log
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_5.pth')

    means = [torch.load(tmp_path / f'mean_{rank}.pt') for rank in range(2)]
    assert not torch.equal(*means)
    pooled = torch.stack(means).double().mean(0).float()
    state = torch.load(tmp_path / 'iter_5.pth')['state_dict']
    assert torch.equal(state['norm.running_mean'], pooled)


# Rank 0 fails while its own collective is under way.
PENDING = """
import signal
import torch
import torch.distributed as dist
from mmdet_megdet.cli import run_tool
from mmdet_megdet.runtime import init_distributed

def main():
    init_distributed('pytorch', dict(dist_cfg=dict(timeout=3000)))
    if dist.get_rank() == 1:
        signal.pause()  # until torchrun ends it
    work = dist.all_reduce(torch.zeros(1), async_op=True)
    raise RuntimeError('while a collective is under way')

run_tool(main)
"""


def test_failure_with_a_collective_under_way_does_not_hang(tmp_path):
    script = tmp_path / 'pending.py'
    script.write_text(PENDING)
    torchrun = (sys.executable, '-m', 'torch.distributed.run')
    options = ('--standalone', '--nproc-per-node=2')
    result = run(*torchrun, *options, script, PYTHONPATH=str(ROOT))
    assert result.returncode == 1
    assert 'RuntimeError: while a collective is under way' in result.stdout
