# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The launchers on a real Slurm: two ranks on the CPUs of one machine."""

from pathlib import Path

import pytest

import mmdet_megdet  # noqa: F401  (checkpoints load safely)
from mmdet_megdet.faults import latest_checkpoint
from tests.distributed.faults import CONFIG, Job, assert_same_end, diary, train
from tests.nightly.slurm.cluster import client, missing, running_cluster
from tests.tools.checks.findings import shown
from tests.tools.command import TOOLS, free_port, run


@pytest.fixture(scope='module')
def cluster():
    """The environment of a job of two tasks, without GPUs."""
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    job = dict(GPUS='2', GPUS_PER_NODE='2', CPUS_PER_TASK='1')
    job['SRUN_ARGS'] = '--gres=none'
    with running_cluster() as variables:
        yield variables | job


def finish(cluster, script: str, *words: str | Path) -> str:
    """Run a launcher to its end; return what was printed."""
    words = (TOOLS / script, 'cpus', 'a-job', *words)
    result = run(*words, MASTER_PORT=free_port(), **cluster)
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_preempted_and_resubmitted(cluster, tmp_path):
    """SIGTERM to all processes of the step; then --resume.

    It ends as two ranks without Slurm do to which nothing happens.
    """
    wait = ('--cfg-options', 'default_hooks.wait.places=[(4, 2)]')
    job = Job(tmp_path)
    words = ('slurm_train.sh', 'cpus', 'a-job', CONFIG, tmp_path, *wait)
    job.start('srun', *words, MASTER_PORT=free_port(), **cluster)
    for rank in range(2):
        job.wait_for(f'waiting_{rank}')
    queued = ('squeue', '--noheader', '--name=a-job', '--format=%i')
    number = client(cluster, *queued).strip()
    client(cluster, 'scancel', '--signal=TERM', number)
    (status,), (log,) = job.finish()
    assert status == 75, log
    assert 'All ranks stop after iteration 5 ' in log
    assert 'tasks 0-1: Exited with exit code 75' in log
    assert 'DataLoader worker' not in log
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_5.pth')

    log = finish(cluster, 'slurm_train.sh', CONFIG, tmp_path, '--resume')
    assert 'resumed epoch: 1, iter: 5' in log
    assert 'Epoch(train) [3][4/4]' in log
    undisturbed = tmp_path / 'undisturbed'
    train(undisturbed)
    for rank in range(2):
        assert diary(tmp_path, rank) == diary(undisturbed, rank)
    assert_same_end(tmp_path, undisturbed)


def test_doctor(cluster):
    """Both tasks are found, and what they compute is right."""
    good = shown(finish(cluster, 'slurm_doctor.sh'), 'PASS')
    assert good['ranks'][0].endswith('ranks 0, 1')
    assert good['all-reduce'] == good['MegDetSyncBN']
