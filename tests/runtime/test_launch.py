# Copyright (c) mmdet_megdet contributors. All rights reserved.
import os
from datetime import timedelta
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist

from mmdet_megdet.errors import LaunchError
from mmdet_megdet.runtime import export_rank, init_distributed
from tests.tools.command import environment

ORDER = 'NCCL_LAUNCH_ORDER_IMPLICIT'
ALONE = dict(RANK='0', LOCAL_RANK='0', WORLD_SIZE='1')
ALONE |= dict(MASTER_ADDR='127.0.0.1', MASTER_PORT='0')
SLURM = dict(SLURM_PROCID='5', SLURM_LOCALID='1', SLURM_NTASKS='8')


@pytest.fixture
def env(monkeypatch):
    """Replaces the environment by a clean one; returns a setter."""
    clean = environment()
    for name in {*os.environ, *ALONE, ORDER} - (clean.keys() - {ORDER}):
        # set first, so that it is taken back afterwards.
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
    env(**SLURM, SLURM_NODELIST='node[3-4]')
    env(PATH=f'{tmp_path}:{os.environ["PATH"]}')


def exported():
    return {name: os.environ[name] for name in ALONE if name in os.environ}


def test_slurm(env, slurm):
    assert export_rank('slurm') == 8
    expected = dict(RANK='5', LOCAL_RANK='1', WORLD_SIZE='8')
    expected |= dict(MASTER_ADDR='node3', MASTER_PORT='29500')
    assert exported() == expected
    # The user's own, and dist_cfg.port, as in MMEngine.
    env(MASTER_ADDR='10.0.0.1', MASTER_PORT='1234')
    export_rank('slurm')
    assert exported() == expected | dict(
        MASTER_ADDR='10.0.0.1', MASTER_PORT='1234'
    )
    export_rank('slurm', port=4321)
    assert os.environ['MASTER_PORT'] == '4321'


@pytest.mark.parametrize('variables', [
    # Of a job, or of the part of it that srun was given.
    dict(SLURM_NODELIST='node[1-4]', SLURM_JOB_NODELIST='node[3-4]'),
    dict(SLURM_JOB_NODELIST='node[1-4]', SLURM_STEP_NODELIST='node[3-4]'),
])  # fmt: skip
def test_slurm_host_of_rank_0(env, slurm, variables):
    env(**variables)
    export_rank('slurm')
    assert os.environ['MASTER_ADDR'] == 'node3'


NO_HOST = dict(SLURM, SLURM_NODELIST='node[3-4]', PATH='nowhere')


@pytest.mark.parametrize(('launcher', 'given', 'message'), [
    ('pytorch', {}, 'needs RANK, LOCAL_RANK, WORLD_SIZE .*dist_train'),
    ('slurm', {}, 'needs SLURM_PROCID.*slurm_train.sh'),
    ('slurm', SLURM, 'needs SLURM_NODELIST'),
    ('slurm', NO_HOST,
     r'scontrol show hostnames node\[3-4\]: .*set MASTER_ADDR'),
    ('slurm', NO_HOST | dict(SLURM_DISTRIBUTION='arbitrary'),
     'may be on any node: set MASTER_ADDR'),
    ('lsf', {}, "no launcher 'lsf'"),
])  # fmt: skip
def test_not_started_by_the_launcher(env, launcher, given, message):
    env(**given)
    with pytest.raises(LaunchError, match=message):
        init_distributed(launcher)


@pytest.mark.parametrize(('cuda', 'gpus', 'own', 'expected'), [
    ('13.0', 2, {}, '1'),
    ('13.0', 2, {ORDER: '0'}, '0'),
    ('13.0', 0, {}, None),  # CPUs
    (None, 2, {}, None),  # ROCm
])  # fmt: skip
def test_gpus(env, monkeypatch, cuda, gpus, own, expected):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: gpus)
    monkeypatch.setattr(torch.version, 'cuda', cuda)
    env(**ALONE | own)
    if gpus:
        env(RANK='6', LOCAL_RANK='2', WORLD_SIZE='8')
        with pytest.raises(LaunchError, match=r'rank 6 .*process 2 .*2 GPU'):
            export_rank('pytorch')
        env(LOCAL_RANK='1')
    assert export_rank('pytorch') == (8 if gpus else 1)
    assert os.environ.get(ORDER) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason='needs no GPU')
def test_cpu_gets_gloo_and_the_timeout(env):
    assert init_distributed('none', dict(dist_cfg=dict(backend='nccl'))) == 1
    assert not dist.is_initialized()
    assert exported() == {}
    env(**ALONE)
    dist_cfg = dict(backend='nccl', timeout=7.5)
    init_distributed('pytorch', dict(dist_cfg=dist_cfg))
    try:
        assert dist.get_backend() == 'gloo'
        group = dist.group.WORLD._get_backend(torch.device('cpu'))
        assert group.options._timeout == timedelta(seconds=7.5)
    finally:
        dist.destroy_process_group()


def test_on_gpus_the_runner_finds_its_group(env, slurm, monkeypatch):
    """Made as the Runner would; Slurm's variables are translated already."""
    calls = Mock()
    launch = 'mmdet_megdet.runtime.launch'
    monkeypatch.setattr(f'{launch}.get_device', lambda: 'cuda')
    for name in ('set_multi_processing', 'init_dist'):
        monkeypatch.setattr(f'{launch}.{name}', getattr(calls, name))
    env_cfg = dict(
        mp_cfg=dict(mp_start_method='fork'),
        dist_cfg=dict(backend='nccl', timeout=5, port=4321),
    )
    assert init_distributed('slurm', env_cfg) == 8
    assert os.environ['MASTER_PORT'] == '4321'
    assert calls.mock_calls == [
        call.set_multi_processing(mp_start_method='fork', distributed=True),
        call.init_dist('pytorch', backend='nccl', timeout=5),
    ]
