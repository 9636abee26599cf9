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
RECORDER = '#!/bin/sh\necho "threads=$OMP_NUM_THREADS" "$@"\n'

# Records its arguments; with RUN_TASKS it also starts the tasks on this
# machine as Slurm would.
SRUN = """#!/usr/bin/env python3
import os, subprocess, sys
print('srun', *sys.argv[1:], flush=True)
if 'RUN_TASKS' in os.environ:
    start = sys.argv.index(os.environ['PYTHON'])
    tasks = next(a for a in sys.argv if a.startswith('--ntasks=')).split('=')
    count = int(tasks[1])
    running = [
        subprocess.Popen(
            sys.argv[start:],
            env=os.environ | dict(
                SLURM_PROCID=str(rank),
                SLURM_LOCALID=str(rank),
                SLURM_NTASKS=str(count),
                SLURM_NODELIST='localhost',
            ),
        )
        for rank in range(count)
    ]
    sys.exit(max(task.wait() for task in running))
"""
SCONTROL = '#!/bin/sh\nfor last; do :; done\necho "$last"\n'

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
    """PATH with stand-ins for Slurm, which is not installed here."""
    program(tmp_path, 'srun', SRUN)
    program(tmp_path, 'scontrol', SCONTROL)
    return f'{tmp_path}:{os.environ["PATH"]}'


@pytest.mark.parametrize('script', SCRIPTS)
def test_too_few_arguments(script):
    result = run(TOOLS / script, *SCRIPTS[script][:-1])
    assert result.returncode == 2
    assert result.stdout.startswith(f'usage: tools/{script} ')


@pytest.mark.parametrize('gpus', ['0', '-1', 'two', '2.5', ''])
@pytest.mark.parametrize('script', ['dist_train.sh', 'dist_test.sh'])
def test_bad_number_of_gpus(script, gpus):
    result = run(TOOLS / script, *SCRIPTS[script][:-1], gpus)
    assert result.returncode == 2
    assert result.stdout.startswith(f'usage: tools/{script} ')


@pytest.mark.parametrize('script', ['dist_train.sh', 'dist_test.sh'])
def test_torchrun_command(script, recorder):
    config = 'a config.py'  # stays one argument
    arguments = [config, *SCRIPTS[script][1:], '--work-dir', 'a b']
    result = run(TOOLS / script, *arguments, PYTHON=recorder)
    tool = script.replace('dist_', '').replace('.sh', '.py')
    given = ' '.join([config, *SCRIPTS[script][1:-1]])
    assert result.stdout == (
        'threads=1 -m torch.distributed.run --standalone '
        f'--nproc-per-node=2 {TOOLS}/{tool} --launcher pytorch {given} '
        '--work-dir a b\n'
    )


def test_several_nodes_command(recorder):
    node = dict(NNODES='4', NODE_RANK='3', MASTER_ADDR='10.0.0.1', PORT='777')
    command = [TOOLS / 'dist_train.sh', 'CONFIG', '8']
    result = run(*command, PYTHON=recorder, **node)
    assert (
        '--nnodes=4 --node-rank=3 --master-addr=10.0.0.1 --master-port=777 '
        '--nproc-per-node=8'
    ) in result.stdout
    for missing in ('NODE_RANK', 'MASTER_ADDR'):
        part = {k: v for k, v in node.items() if k != missing}
        result = run(*command, PYTHON=recorder, **part)
        assert result.returncode == 2
        assert 'NNODES=4 needs NODE_RANK (0 to 3)' in result.stdout


def test_chosen_port(recorder):
    command = [TOOLS / 'dist_train.sh', 'CONFIG', '2']
    result = run(*command, PYTHON=recorder, PORT='777')
    assert '--master-addr=127.0.0.1 --master-port=777' in result.stdout


def test_machines_that_come_and_go(recorder):
    command = [TOOLS / 'dist_train.sh', 'CONFIG', '8', '--resume']
    result = run(*command, PYTHON=recorder, NNODES='1:2', MASTER_ADDR='a')
    assert (
        f'{TOOLS}/elastic.py --nnodes=1:2 --rdzv-backend=c10d '
        '--rdzv-id=mmdet_megdet --rdzv-endpoint=a:29500 --max-restarts=20 '
        f'--nproc-per-node=8 {TOOLS}/train.py --launcher pytorch CONFIG '
        '--resume\n'
    ) in result.stdout
    result = run(*command, PYTHON=recorder, NNODES='1:2')
    assert result.returncode == 2
    assert 'NNODES=1:2 needs MASTER_ADDR' in result.stdout


def test_threads(recorder):
    cores = len(os.sched_getaffinity(0))
    for ranks, given, threads in (
        (1, '', cores),
        (cores, '', 1),
        (cores + 1, '', 1),
        (1, '3', 3),
    ):
        result = run(
            TOOLS / 'dist_train.sh',
            'CONFIG',
            str(ranks),
            PYTHON=recorder,
            OMP_NUM_THREADS=given,
        )
        assert result.stdout.startswith(f'threads={threads} ')


@pytest.mark.parametrize(
    ('given', 'seconds'),
    [({}, '300'), (dict(TORCH_ELASTIC_SHUTDOWN_TIMEOUT='20'), '20')],
)
def test_time_after_sigterm(tmp_path, given, seconds):
    """torchrun's own 30 s may be too few for an update and a checkpoint."""
    text = '#!/bin/sh\necho "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT"\n'
    python = str(program(tmp_path, 'python', text))
    result = run(
        TOOLS / 'dist_train.sh', 'CONFIG', '2', PYTHON=python, **given
    )
    assert result.stdout == f'{seconds}\n'


def test_slurm_command(slurm):
    options = dict(PATH=slurm, PYTHON='python3')
    result = run(
        TOOLS / 'slurm_train.sh',
        *SCRIPTS['slurm_train.sh'],
        '--amp',
        **options,
    )
    assert result.stdout == (
        'srun --partition=PARTITION --job-name=JOB --gres=gpu:8 --ntasks=8 '
        '--ntasks-per-node=8 --cpus-per-task=5 --kill-on-bad-exit=1 python3 '
        f'-u {TOOLS}/train.py --launcher slurm CONFIG --work-dir WORK_DIR '
        '--amp\n'
    )
    result = run(
        TOOLS / 'slurm_test.sh',
        *SCRIPTS['slurm_test.sh'],
        GPUS='16',
        GPUS_PER_NODE='4',
        CPUS_PER_TASK='3',
        SRUN_ARGS='--qos=high --gres=none',
        **options,
    )
    assert result.stdout == (
        'srun --partition=PARTITION --job-name=JOB --gres=gpu:4 --ntasks=16 '
        '--ntasks-per-node=4 --cpus-per-task=3 --kill-on-bad-exit=1 '
        f'--qos=high --gres=none python3 -u {TOOLS}/test.py --launcher slurm '
        'CONFIG CHECKPOINT\n'
    )


def finished(work_dir):
    """Epoch, iterations and weights of a finished run of one epoch."""
    saved = torch.load(work_dir / 'epoch_1.pth')
    return (
        saved['meta']['epoch'],
        saved['meta']['iter'],
        saved['state_dict']['conv.weight'],
    )


ONE_EPOCH = ['--cfg-options', 'train_cfg.max_epochs=1']


@pytest.mark.slow
def test_every_launcher_trains_alike(tmp_path, slurm):
    """torchrun, two torchrun agents and Slurm: two ranks, the same run."""
    results = {}
    work_dir = tmp_path / 'torchrun'
    result = run(
        TOOLS / 'dist_train.sh',
        TINY_CONFIG,
        '2',
        '--work-dir',
        work_dir,
        *ONE_EPOCH,
        cold=True,
    )
    assert result.returncode == 0, result.stdout
    results['torchrun'] = finished(work_dir)

    work_dir = tmp_path / 'agents'
    node = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=free_port())
    agents = [
        start(
            *(TOOLS / 'dist_train.sh', TINY_CONFIG, '1'),
            *('--work-dir', work_dir, *ONE_EPOCH),
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
    results['agents'] = finished(work_dir)

    work_dir = tmp_path / 'slurm'
    result = run(
        TOOLS / 'slurm_train.sh',
        'PARTITION',
        'JOB',
        TINY_CONFIG,
        work_dir,
        *ONE_EPOCH,
        PATH=slurm,
        GPUS='2',
        RUN_TASKS='yes',
        MASTER_PORT=free_port(),
    )
    assert result.returncode == 0, result.stdout
    results['slurm'] = finished(work_dir)

    for epoch, iterations, weight in results.values():
        assert (epoch, iterations) == (1, 4)  # 32 images, 2 ranks x 4
        assert torch.equal(weight, results['torchrun'][2])

    tested = run(
        TOOLS / 'dist_test.sh',
        TINY_CONFIG,
        work_dir / 'epoch_1.pth',
        '2',
        '--work-dir',
        work_dir,
    )
    assert tested.returncode == 0, tested.stdout
    assert 'Epoch(test) [3/3]    error: ' in tested.stdout  # 6 images / 2


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['model.fail_on=1'], 'RuntimeError: failing as the test asked for'),
        (
            ['model.extra_head_on=1', 'optim_wrapper.accumulative_counts=1'],
            'find_unused_parameters=True',
        ),
    ],
)
def test_a_failing_rank_ends_the_run(tmp_path, options, message):
    """One rank fails while the other waits for it in a collective."""
    result = run(
        TOOLS / 'dist_train.sh',
        TINY_CONFIG,
        '2',
        '--work-dir',
        tmp_path,
        '--cfg-options',
        *options,
    )
    assert result.returncode == 1
    assert message in result.stdout
    # torchrun ends the other one: it does not come to its own timeout.
    assert 'Timed out' not in result.stdout


def test_every_rank_says_what_is_wrong(tmp_path):
    result = run(
        TOOLS / 'dist_train.sh',
        TINY_CONFIG,
        '2',
        '--work-dir',
        tmp_path,
        '--auto-scale-lr',
        '--cfg-options',
        'auto_scale_lr.base_batch_size=16',
    )
    assert result.returncode == 1
    message = 'error: --auto-scale-lr (auto_scale_lr.enable) ignores'
    assert result.stdout.count(message) == 2
