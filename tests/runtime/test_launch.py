# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from mmdet_megdet.errors import LaunchError
from mmdet_megdet.runtime import export_rank, init_distributed
from tests.tools.command import environment

EXPORTED = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')
ALONE = dict(
    RANK='0',
    LOCAL_RANK='0',
    WORLD_SIZE='1',
    MASTER_ADDR='127.0.0.1',
    MASTER_PORT='0',
)
SLURM = dict(
    SLURM_PROCID='5',
    SLURM_LOCALID='1',
    SLURM_NTASKS='8',
    SLURM_NODELIST='node[3-4]',
)
NO_NODES = {k: v for k, v in SLURM.items() if k != 'SLURM_NODELIST'}


@pytest.fixture
def env(monkeypatch):
    """Replaces the environment by a clean one; returns a setter."""
    clean = environment()
    for name in set(os.environ) - set(clean):
        monkeypatch.delenv(name)
    for name in ('MASTER_ADDR', 'MASTER_PORT', *EXPORTED):
        monkeypatch.setenv(name, '')
        monkeypatch.delenv(name)

    def set_all(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def slurm(tmp_path, env):
    """A stand-in for Slurm's client, which need not be installed here."""
    program = tmp_path / 'scontrol'
    program.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames node[3-4]" ] || exit 1\n'
        'echo node3; echo node4\n'
    )
    program.chmod(0o755)
    env(**SLURM, PATH=f'{tmp_path}:{os.environ["PATH"]}')


def exported():
    return {name: os.environ.get(name) for name in EXPORTED}


def test_no_launcher(env):
    assert init_distributed('none', dict(backend='nccl')) == 1
    assert not dist.is_initialized()
    assert set(exported().values()) == {None}


def test_slurm(env, slurm):
    assert export_rank('slurm') == 8
    assert exported() == dict(
        RANK='5',
        LOCAL_RANK='1',
        WORLD_SIZE='8',
        MASTER_ADDR='node3',
        MASTER_PORT='29500',
    )
    # The user's own, and dist_cfg.port, as in MMEngine.
    env(MASTER_ADDR='10.0.0.1', MASTER_PORT='1234')
    export_rank('slurm')
    assert exported()['MASTER_ADDR'] == '10.0.0.1'
    assert exported()['MASTER_PORT'] == '1234'
    export_rank('slurm', port=4321)
    assert exported()['MASTER_PORT'] == '4321'


@pytest.mark.parametrize('others', ['', 'node[1-4]'])
@pytest.mark.parametrize('name', ['SLURM_JOB_NODELIST', 'SLURM_STEP_NODELIST'])
def test_slurm_nodes(env, slurm, name, others):
    """Of a job, or of the part of it that srun was given."""
    env(SLURM_NODELIST=others, **{name: 'node[3-4]'})
    export_rank('slurm')
    assert exported()['MASTER_ADDR'] == 'node3'


@pytest.mark.parametrize(
    ('variables', 'reason'),
    [
        (dict(PATH='nowhere'), r'scontrol show hostnames node\[3-4\]: '),
        (dict(SLURM_DISTRIBUTION='arbitrary'), 'may be on any node'),
    ],
)
def test_slurm_host_of_rank_0_unknown(env, slurm, variables, reason):
    env(**variables)
    with pytest.raises(LaunchError, match=f'{reason}.*set MASTER_ADDR'):
        export_rank('slurm')


@pytest.mark.parametrize(
    ('launcher', 'given', 'message'),
    [
        ('pytorch', {}, 'needs RANK, LOCAL_RANK, WORLD_SIZE .*dist_train'),
        ('slurm', {}, 'needs SLURM_PROCID.*slurm_train.sh'),
        ('slurm', NO_NODES, 'needs SLURM_NODELIST'),
        ('lsf', {}, "unknown launcher 'lsf'"),
    ],
)
def test_not_started_by_the_launcher(env, launcher, given, message):
    env(**given)
    with pytest.raises(LaunchError, match=message):
        init_distributed(launcher)


def test_more_ranks_than_gpus(env, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    env(**ALONE | dict(RANK='6', LOCAL_RANK='2', WORLD_SIZE='8'))
    with pytest.raises(LaunchError, match=r'rank 6 .*process 2 .*2 GPU'):
        export_rank('pytorch')
    env(LOCAL_RANK='1')
    assert export_rank('pytorch') == 8


@pytest.mark.parametrize(
    ('cuda', 'gpus', 'own', 'expected'),
    [
        ('13.0', 8, None, '1'),
        ('13.0', 8, '0', '0'),
        ('13.0', 0, None, None),  # CPUs
        (None, 8, None, None),  # ROCm
    ],
)
def test_launch_order(env, monkeypatch, cuda, gpus, own, expected):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: gpus)
    monkeypatch.setattr(torch.version, 'cuda', cuda)
    name = 'NCCL_LAUNCH_ORDER_IMPLICIT'
    monkeypatch.setenv(name, own or 'to be taken back')
    if own is None:
        monkeypatch.delenv(name)
    env(**ALONE)
    export_rank('pytorch')
    assert os.environ.get(name) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason='needs no GPU')
def test_cpu_gets_gloo_and_the_timeout(env):
    env(**ALONE)
    init_distributed('pytorch', dict(backend='nccl', timeout=7.5))
    try:
        assert dist.get_backend() == 'gloo'
        group = dist.group.WORLD._get_backend(torch.device('cpu'))
        assert group.options._timeout == timedelta(seconds=7.5)
    finally:
        dist.destroy_process_group()
