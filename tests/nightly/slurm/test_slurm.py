# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The launchers on a real Slurm: two ranks on the CPUs of one machine."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
import torch

import mmdet_megdet  # noqa: F401  (checkpoints load safely)
from mmdet_megdet.faults import latest_checkpoint
from tests.distributed.faults import CONFIG, assert_same_end, diary
from tests.nightly.slurm.cluster import client, missing, running_cluster
from tests.tools.checks.findings import shown
from tests.tools.command import (
    PATIENCE,
    TOOLS,
    environment,
    free_port,
    run,
)


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


def command(script: str, *arguments: str | Path):
    return TOOLS / script, 'cpus', 'a-job', *arguments


def train(cluster, work_dir: Path, *options: str):
    """Train to the end; return what was printed."""
    words = command('slurm_train.sh', CONFIG, work_dir, *options)
    result = run(*words, MASTER_PORT=free_port(), **cluster)
    assert result.returncode == 0, result.stdout
    return result.stdout


def meta(path: Path) -> tuple[int, int]:
    """Epochs and iterations of a checkpoint."""
    saved = torch.load(path)['meta']
    return saved['epoch'], saved['iter']


@pytest.fixture(scope='module')
def trained(cluster, tmp_path_factory):
    """The folder of a run to its end, and what it printed."""
    work_dir = tmp_path_factory.mktemp('trained')
    return work_dir, train(cluster, work_dir)


def test_two_tasks_train_as_one_run(trained):
    """3 epochs of 64 images / (2 ranks x 4 images x 2 micro-steps)."""
    work_dir, log = trained
    assert meta(work_dir / 'epoch_3.pth') == (3, 12)
    assert 'Epoch(train) [3][4/4]' in log
    first, second = (diary(work_dir, rank) for rank in range(2))
    assert len(first) == len(second) == 24
    # In no micro-step are they the same images.
    assert not set(first) & set(second)


def test_preempted_and_resubmitted(trained, cluster, tmp_path):
    """SIGTERM to all processes of the step; then --resume."""
    undisturbed, _ = trained
    pause = ('--cfg-options', 'default_hooks.diary.pause=0.5')
    output, noted = tmp_path / 'job.out', tmp_path / 'diary_0.txt'
    with output.open('w') as file:
        running = subprocess.Popen(
            command('slurm_train.sh', CONFIG, tmp_path, *pause),
            env=environment(MASTER_PORT=free_port(), **cluster),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + PATIENCE
        while not (noted.exists() and '4 0:' in noted.read_text()):
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.05)
        queued = ('squeue', '--noheader', '--name=a-job', '--format=%i')
        number = client(cluster, *queued).strip()
        client(cluster, 'scancel', '--signal=TERM', number)
        status = running.wait(PATIENCE)
    finally:
        running.kill()
        running.wait()
    log = output.read_text()
    assert status == 75, log
    # In its fifth update; or later, where the signal takes its time.
    (done,) = re.findall(r'All ranks stop after iteration (\d) ', log)
    assert done in '567'
    assert 'tasks 0-1: Exited with exit code 75' in log
    assert 'DataLoader worker' not in log
    assert latest_checkpoint(tmp_path) == str(tmp_path / f'iter_{done}.pth')
    assert meta(tmp_path / f'iter_{done}.pth') == (1, int(done))

    log = train(cluster, tmp_path, '--resume')
    assert f'resumed epoch: 1, iter: {done}' in log
    assert meta(tmp_path / 'epoch_3.pth') == (3, 12)
    for rank in range(2):
        assert diary(tmp_path, rank) == diary(undisturbed, rank)
    assert_same_end(tmp_path, undisturbed)


def test_doctor(cluster):
    """Both tasks are found, and what they compute is right."""
    words = command('slurm_doctor.sh')
    result = run(*words, MASTER_PORT=free_port(), **cluster)
    assert result.returncode == 0, result.stdout
    good = shown(result.stdout, 'PASS')
    assert good['ranks'][0].endswith('ranks 0, 1')
    assert good['all-reduce'] == good['MegDetSyncBN']
