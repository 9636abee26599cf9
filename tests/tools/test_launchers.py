# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
import shlex
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

# In the place of Python, and of srun.
RECORDER = """#!/bin/sh
echo $OMP_NUM_THREADS $TORCH_ELASTIC_SHUTDOWN_TIMEOUT "$@"
"""
CORES = len(os.sched_getaffinity(0))
NODE = dict(NNODES='4', NODE_RANK='3', MASTER_ADDR='10.0.0.1', PORT='777')
BY_CORES = dict(OMP_NUM_THREADS='')
GIVEN = dict(OMP_NUM_THREADS='3', TORCH_ELASTIC_SHUTDOWN_TIMEOUT='9')
SRUN = dict(GPUS='16', GPUS_PER_NODE='4', CPUS_PER_TASK='3')
SRUN['SRUN_ARGS'] = '--qos=high --gres=none'
TORCHRUN = '-m torch.distributed.run'
TRAIN = f'--nproc-per-node=2 {TOOLS}/train.py --launcher pytorch CONFIG'
TEST = f'{TOOLS}/test.py --launcher pytorch CONFIG CHECKPOINT'
ALONE = f'{TORCHRUN} --standalone --nproc-per-node'


@pytest.mark.parametrize(
    ('command', 'variables', 'refusal'),
    [
        ('dist_train.sh CONFIG', {}, 'usage: tools/dist_train.sh '),
        ('dist_train.sh CONFIG 0', {}, 'usage: tools/dist_train.sh '),
        ('dist_test.sh CONFIG A two', {}, 'usage: tools/dist_test.sh '),
        ('slurm_train.sh PART JOB CONFIG', {}, 'usage: tools/slurm_train.sh '),
        ('slurm_test.sh PART JOB CONFIG', {}, 'usage: tools/slurm_test.sh '),
        ('dist_doctor.sh', {}, 'usage: tools/dist_doctor.sh GPUS'),
        ('slurm_doctor.sh PART', {}, 'usage: tools/slurm_doctor.sh PART'),
        (
            'dist_train.sh CONFIG 2',
            NODE | dict(NODE_RANK=''),
            'error: NNODES=4 needs NODE_RANK (0 to 3)',
        ),
        (
            'dist_train.sh CONFIG 2',
            NODE | dict(MASTER_ADDR=''),
            'error: NNODES=4 needs NODE_RANK (0 to 3)',
        ),
        (
            'dist_train.sh CONFIG 2',
            dict(NNODES='1:2'),
            'error: NNODES=1:2 needs MASTER_ADDR',
        ),
    ],
)
def test_refusals(command, variables, refusal):
    script, *words = command.split()
    result = run(TOOLS / script, *words, PYTHON='false', **variables)
    assert result.returncode == 2
    assert result.stdout.startswith(refusal)


@pytest.mark.parametrize(
    ('command', 'variables', 'started'),
    [
        (
            'dist_train.sh CONFIG 2 --work-dir "a  b"',
            {},
            f'1 300 {TORCHRUN} --standalone {TRAIN} --work-dir a  b',
        ),
        (
            'dist_train.sh CONFIG 2',
            dict(PORT='777'),
            f'1 300 {TORCHRUN} --nnodes=1 --node-rank=0 '
            f'--master-addr=127.0.0.1 --master-port=777 {TRAIN}',
        ),
        (
            'dist_train.sh CONFIG 2',
            NODE,
            f'1 300 {TORCHRUN} --nnodes=4 --node-rank=3 '
            f'--master-addr=10.0.0.1 --master-port=777 {TRAIN}',
        ),
        (
            'dist_train.sh CONFIG 2',
            dict(NNODES='1:2', MASTER_ADDR='a'),
            f'1 300 {TOOLS}/elastic.py --nnodes=1:2 --rdzv-backend=c10d '
            '--rdzv-id=mmdet_megdet --rdzv-endpoint=a:29500 '
            f'--max-restarts=20 {TRAIN}',
        ),
        (
            'dist_test.sh CONFIG CHECKPOINT 1 --tta',
            BY_CORES,
            f'{CORES} 300 {ALONE}=1 {TEST} --tta',
        ),
        (
            f'dist_test.sh CONFIG CHECKPOINT {CORES + 1}',
            BY_CORES,
            f'1 300 {ALONE}={CORES + 1} {TEST}',
        ),
        (
            'dist_test.sh CONFIG CHECKPOINT 1',
            GIVEN,
            f'3 9 {ALONE}=1 {TEST}',
        ),
        (
            'slurm_train.sh PART JOB CONFIG FOLDER --amp',
            {},
            '1 --partition=PART --job-name=JOB --gres=gpu:8 --ntasks=8 '
            '--ntasks-per-node=8 --cpus-per-task=5 --kill-on-bad-exit=1 '
            f'PYTHON -u {TOOLS}/train.py --launcher slurm CONFIG '
            '--work-dir FOLDER --amp',
        ),
        (
            'slurm_test.sh PART JOB CONFIG CHECKPOINT',
            SRUN,
            '1 --partition=PART --job-name=JOB --gres=gpu:4 --ntasks=16 '
            '--ntasks-per-node=4 --cpus-per-task=3 --kill-on-bad-exit=1 '
            f'--qos=high --gres=none PYTHON -u {TOOLS}/test.py '
            '--launcher slurm CONFIG CHECKPOINT',
        ),
        (
            'slurm_doctor.sh PART JOB CONFIG --timeout 9',
            {},
            '1 --partition=PART --job-name=JOB --gres=gpu:8 --ntasks=8 '
            '--ntasks-per-node=8 --cpus-per-task=5 --kill-on-bad-exit=1 '
            f'PYTHON -u {TOOLS}/dist_doctor.py --launcher slurm CONFIG '
            '--timeout 9',
        ),
    ],
)
def test_what_is_started(tmp_path, command, variables, started):
    recorder = tmp_path / 'srun'
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    script, *words = shlex.split(command)
    path = f'{tmp_path}:{os.environ["PATH"]}'
    given = dict(PATH=path, PYTHON=str(recorder)) | variables
    result = run(TOOLS / script, *words, **given)
    assert result.stdout.replace(f'{recorder} -u', 'PYTHON -u') == (
        f'{started}\n'
    )


@pytest.mark.slow
def test_one_and_two_agents_train_alike(tmp_path):
    """Two ranks and the same run, started as a user starts them."""
    node = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=free_port())
    machines = [node | dict(NODE_RANK='0'), node | dict(NODE_RANK='1')]
    ends = []
    for ranks, agents in (('2', [{}]), ('1', machines)):
        words = ['--work-dir', tmp_path / ranks, '--cfg-options']
        started = [
            start(
                *(TOOLS / 'dist_train.sh', TINY_CONFIG, ranks, *words),
                'train_cfg.max_epochs=1',
                env=environment(**variables),
                cold=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for variables in agents
        ]
        for agent in started:
            output, _ = agent.communicate(timeout=PATIENCE)
            assert agent.returncode == 0, output
        ends.append(torch.load(tmp_path / ranks / 'epoch_1.pth'))
    for end in ends:
        # 32 images, 2 ranks x 4
        assert (end['meta']['epoch'], end['meta']['iter']) == (1, 4)
    one, two = (end['state_dict'] for end in ends)
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_every_rank_says_what_is_wrong(tmp_path):
    result = run(
        *(TOOLS / 'dist_train.sh', TINY_CONFIG, '2', '--work-dir', tmp_path),
        *('--auto-scale-lr', '--cfg-options'),
        'auto_scale_lr.base_batch_size=16',
    )
    assert result.returncode == 1
    message = 'error: --auto-scale-lr (auto_scale_lr.enable) ignores'
    assert result.stdout.count(message) == 2
