# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
import stat
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
MPI = dict(
    OMPI_COMM_WORLD_RANK='5',
    OMPI_COMM_WORLD_LOCAL_RANK='1',
    OMPI_COMM_WORLD_SIZE='8',
)


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
    """Stand-ins for Slurm's clients, which need not be installed here."""
    says = {
        'scontrol': """[ "$*" = "show hostnames node[3-4]" ] || exit 1
echo node3; echo node4
""",
        # As Slurm 22.05 prints it.
        'sattach': """[ "$*" = "--layout 17.2" ] || exit 1
printf 'Job step layout:\n\t8 tasks, 2 nodes (node[3-4])\n\n'
printf '\tNode 0 (node3), 4 task(s): 4 5 6 10 \n'
printf '\tNode 1 (node4), 4 task(s): 0 1 2 3 \n'
""",
    }
    for name, script in says.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\n{script}')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    env(PATH=f'{tmp_path}:{os.environ["PATH"]}')


def exported():
    return {name: os.environ.get(name) for name in EXPORTED}


def test_no_launcher(env):
    assert init_distributed('none', dict(backend='nccl')) == 1
    assert not dist.is_initialized()
    assert set(exported().values()) == {None}


def test_slurm(env, slurm):
    env(**SLURM)
    assert export_rank('slurm') == 8
    assert exported() == dict(
        RANK='5',
        LOCAL_RANK='1',
        WORLD_SIZE='8',
        MASTER_ADDR='node3',
        MASTER_PORT='29500',
    )


def test_slurm_keeps_the_users_master(env):
    env(**SLURM, MASTER_ADDR='10.0.0.1', MASTER_PORT='1234')
    export_rank('slurm')
    assert exported()['MASTER_ADDR'] == '10.0.0.1'
    assert exported()['MASTER_PORT'] == '1234'
    export_rank('slurm', port=4321)  # dist_cfg.port, as in MMEngine
    assert exported()['MASTER_PORT'] == '4321'


ARBITRARY = dict(
    SLURM_DISTRIBUTION='arbitrary', SLURM_JOB_ID='17', SLURM_STEP_ID='2'
)


@pytest.mark.parametrize(
    ('variables', 'host'),
    [
        (dict(SLURM_NODELIST='', SLURM_JOB_NODELIST='node[3-4]'), 'node3'),
        # srun on a part of the job's nodes.
        (
            dict(
                SLURM_JOB_NODELIST='node[1-4]',
                SLURM_STEP_NODELIST='node[3-4]',
            ),
            'node3',
        ),
        # A task beside rank 0 knows by itself.
        (
            dict(SLURM_PROCID='0', SLURMD_NODENAME='node4', **ARBITRARY),
            'node4',
        ),
        (dict(SLURM_GTIDS='5,0', SLURMD_NODENAME='node4'), 'node4'),
        (dict(SLURM_GTIDS='10,5', SLURMD_NODENAME='node3'), 'node3'),
        # The first of the nodes is not rank 0's.
        (
            dict(SLURM_GTIDS='4,5,6,10', SLURMD_NODENAME='node3', **ARBITRARY),
            'node4',
        ),
    ],
)
def test_slurm_host_of_rank_0(env, slurm, variables, host):
    env(**SLURM | variables)
    export_rank('slurm')
    assert exported()['MASTER_ADDR'] == host


@pytest.mark.parametrize('variables', [{}, ARBITRARY])
def test_slurm_without_its_clients(env, tmp_path, variables):
    env(**SLURM, **variables, PATH=str(tmp_path))
    told = r'(node\[3-4\]|--layout 17.2): .*set MASTER_ADDR'
    with pytest.raises(LaunchError, match=told):
        export_rank('slurm')


def test_mpi(env):
    env(**MPI, MASTER_ADDR='10.0.0.1')
    assert export_rank('mpi') == 8
    assert exported() == dict(
        RANK='5',
        LOCAL_RANK='1',
        WORLD_SIZE='8',
        MASTER_ADDR='10.0.0.1',
        MASTER_PORT='29500',
    )


@pytest.mark.parametrize(
    ('launcher', 'given', 'message'),
    [
        ('pytorch', {}, 'needs RANK, LOCAL_RANK, WORLD_SIZE .*dist_train'),
        ('slurm', {}, 'needs SLURM_PROCID.*slurm_train.sh'),
        ('mpi', {}, 'needs OMPI_COMM_WORLD_RANK.*mpirun'),
        ('mpi', MPI, 'needs MASTER_ADDR'),
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
