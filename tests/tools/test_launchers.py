# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
import stat
import subprocess

import pytest
import torch

import mmdet_megdet  # noqa: F401  (checkpoints load safely)
from tests.tools.command import (
    PATIENCE,
    TINY_CONFIG,
    TOOLS,
    environment,
    free_port,
    run,
    start,
)

# An interpreter that says how it was called.
RECORDER = """#!/bin/sh
echo "$OMP_NUM_THREADS" "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT" "$@"
"""

SCRIPTS = {
    'dist_train.sh': ['CONFIG', '2'],
    'dist_test.sh': ['CONFIG', 'CHECKPOINT', '2'],
    'slurm_train.sh': ['PARTITION', 'JOB', 'CONFIG', 'WORK_DIR'],
    'slurm_test.sh': ['PARTITION', 'JOB', 'CONFIG', 'CHECKPOINT'],
}


def program(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def recorder(tmp_path):
    return str(program(tmp_path, 'recorder', RECORDER))


@pytest.fixture
def slurm(tmp_path):
    """PATH with a stand-in for Slurm, which is not installed here."""
    program(tmp_path, 'srun', '#!/bin/sh\necho srun "$@"\n')
    return f'{tmp_path}:{os.environ["PATH"]}'


@pytest.mark.parametrize('script', SCRIPTS)
def test_bad_arguments(script):
    for last in ([], *([['0'], ['two'], ['']] if 'dist' in script else [])):
        result = run(TOOLS / script, *SCRIPTS[script][:-1], *last)
        assert result.returncode == 2
        assert result.stdout.startswith(f'usage: tools/{script} ')


TRAIN = f'{TOOLS}/train.py --launcher pytorch a b'
NODE = dict(NNODES='4', NODE_RANK='3', MASTER_ADDR='10.0.0.1', PORT='777')
TORCHRUN = '-m torch.distributed.run'


@pytest.mark.parametrize(
    ('variables', 'started'),
    [
        ({}, f'{TORCHRUN} --standalone --nproc-per-node=2 {TRAIN}'),
        (
            dict(PORT='777'),
            f'{TORCHRUN} --nnodes=1 --node-rank=0 --master-addr=127.0.0.1 '
            f'--master-port=777 --nproc-per-node=2 {TRAIN}',
        ),
        (
            NODE,
            f'{TORCHRUN} --nnodes=4 --node-rank=3 --master-addr=10.0.0.1 '
            f'--master-port=777 --nproc-per-node=2 {TRAIN}',
        ),
        (NODE | dict(NODE_RANK=''), 'NNODES=4 needs NODE_RANK (0 to 3)'),
        (NODE | dict(MASTER_ADDR=''), 'NNODES=4 needs NODE_RANK (0 to 3)'),
        (
            dict(NNODES='1:2', MASTER_ADDR='a'),
            f'{TOOLS}/elastic.py --nnodes=1:2 --rdzv-backend=c10d '
            '--rdzv-id=mmdet_megdet --rdzv-endpoint=a:29500 --max-restarts=20 '
            f'--nproc-per-node=2 {TRAIN}',
        ),
        (dict(NNODES='1:2'), 'NNODES=1:2 needs MASTER_ADDR'),
    ],
)
def test_torchrun_command(recorder, variables, started):
    # What has a space stays one argument.
    words = ['a b', '2', '--work-dir', 'c d']
    result = run(TOOLS / 'dist_train.sh', *words, PYTHON=recorder, **variables)
    refused = 'needs' in started
    assert result.returncode == (2 if refused else 0)
    if refused:
        assert started in result.stdout
    else:
        assert result.stdout == f'1 300 {started} --work-dir c d\n'


def test_torchrun_command_of_a_test(recorder):
    words = [*SCRIPTS['dist_test.sh'], '--tta']
    result = run(TOOLS / 'dist_test.sh', *words, PYTHON=recorder)
    assert result.stdout == (
        f'1 300 {TORCHRUN} --standalone --nproc-per-node=2 {TOOLS}/test.py '
        '--launcher pytorch CONFIG CHECKPOINT --tta\n'
    )


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ('ranks', 'given', 'threads', 'seconds'),
    [
        (1, {}, CORES, 300),
        (CORES, {}, 1, 300),
        (CORES + 1, {}, 1, 300),
        (1, dict(OMP_NUM_THREADS='3'), 3, 300),
        # torchrun's own 30 s may be too few for an update and a checkpoint.
        (CORES, dict(TORCH_ELASTIC_SHUTDOWN_TIMEOUT='20'), 1, 20),
    ],
)
def test_threads_and_time_after_sigterm(
    recorder, ranks, given, threads, seconds
):
    given = dict(OMP_NUM_THREADS='') | given
    words = ['CONFIG', str(ranks)]
    result = run(TOOLS / 'dist_train.sh', *words, PYTHON=recorder, **given)
    assert result.stdout.startswith(f'{threads} {seconds} ')


def test_slurm_command(slurm):
    options = dict(PATH=slurm, PYTHON='python3')
    words = [*SCRIPTS['slurm_train.sh'], '--amp']
    result = run(TOOLS / 'slurm_train.sh', *words, **options)
    assert result.stdout == (
        'srun --partition=PARTITION --job-name=JOB --gres=gpu:8 --ntasks=8 '
        '--ntasks-per-node=8 --cpus-per-task=5 --kill-on-bad-exit=1 python3 '
        f'-u {TOOLS}/train.py --launcher slurm CONFIG --work-dir WORK_DIR '
        '--amp\n'
    )
    options |= dict(GPUS='16', GPUS_PER_NODE='4', CPUS_PER_TASK='3')
    options['SRUN_ARGS'] = '--qos=high --gres=none'
    words = SCRIPTS['slurm_test.sh']
    result = run(TOOLS / 'slurm_test.sh', *words, **options)
    assert result.stdout == (
        'srun --partition=PARTITION --job-name=JOB --gres=gpu:4 --ntasks=16 '
        '--ntasks-per-node=4 --cpus-per-task=3 --kill-on-bad-exit=1 '
        f'--qos=high --gres=none python3 -u {TOOLS}/test.py --launcher slurm '
        'CONFIG CHECKPOINT\n'
    )


def finished(work_dir):
    """Epoch, iterations and weights of a finished run of one epoch."""
    saved = torch.load(work_dir / 'epoch_1.pth')
    meta, weights = saved['meta'], saved['state_dict']
    return meta['epoch'], meta['iter'], weights['conv.weight']


ONE_EPOCH = ['--cfg-options', 'train_cfg.max_epochs=1']


@pytest.mark.slow
def test_every_launcher_trains_alike(tmp_path):
    """torchrun and two torchrun agents: two ranks, the same run.

    dist_train.sh and dist_test.sh start as a user starts them.
    """

    def options(name):
        return '--work-dir', tmp_path / name, *ONE_EPOCH

    command = [TOOLS / 'dist_train.sh', TINY_CONFIG, '2']
    result = run(*command, *options('torchrun'), cold=True)
    assert result.returncode == 0, result.stdout

    node = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=free_port())
    agents = [
        start(
            *(TOOLS / 'dist_train.sh', TINY_CONFIG, '1', *options('agents')),
            env=environment(NODE_RANK=str(rank), **node),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for agent in agents:
        output, _ = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 0, output

    runs = [finished(tmp_path / name) for name in ('torchrun', 'agents')]
    for epoch, iterations, weight in runs:
        assert (epoch, iterations) == (1, 4)  # 32 images, 2 ranks x 4
        assert torch.equal(weight, runs[0][2])

    checkpoint = tmp_path / 'agents' / 'epoch_1.pth'
    command = [TOOLS / 'dist_test.sh', TINY_CONFIG, checkpoint, '2']
    tested = run(*command, '--work-dir', tmp_path, cold=True)
    assert tested.returncode == 0, tested.stdout
    assert 'Epoch(test) [3/3]    error: ' in tested.stdout  # 6 images / 2


def test_every_rank_says_what_is_wrong(tmp_path):
    result = run(
        *(TOOLS / 'dist_train.sh', TINY_CONFIG, '2', '--work-dir', tmp_path),
        *('--auto-scale-lr', '--cfg-options'),
        'auto_scale_lr.base_batch_size=16',
    )
    assert result.returncode == 1
    message = 'error: --auto-scale-lr (auto_scale_lr.enable) ignores'
    assert result.stdout.count(message) == 2
