# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Joining a distributed run, on GPUs (NCCL) or on CPUs (gloo).

MMEngine's own start-up always selects a CUDA device. On a machine without
one the process group is therefore made here, ahead of the Runner, which then
leaves it alone; on GPUs the Runner makes it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from mmengine.device import get_device

from ..errors import LaunchError

# A line of sattach --layout.
_NODE = re.compile(r'\s*Node \d+ \((?P<name>.+)\), .*: (?P<tasks>[\d ]+)')
_UNKNOWN_HOST = "cannot tell rank 0's host ({}): set MASTER_ADDR to it."
_DEFAULT_PORT = '29500'  # torch.distributed's and MMEngine's
_RANK_NAMES = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')


def export_rank(launcher: str, port: int | None = None) -> int:
    """Translate a launcher's environment into torch's variables.

    Sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as
    ``mmengine.dist.init_dist`` does, so that either may do it. On NVIDIA's
    GPUs NCCL_LAUNCH_ORDER_IMPLICIT=1 too, where the user has not set it:
    NCCL then starts the kernels of BatchNorm's and DDP's communicators in the
    host's order. In another order on another rank, ranks may wait for each
    other for ever.

    Args:
        launcher (str): 'none', 'pytorch' (torchrun), 'slurm' or 'mpi'
            (Open MPI).
        port (int, optional): Port of rank 0 under Slurm. Defaults to None:
            MASTER_PORT, else 29500.

    Returns:
        int: The world size; 1 for 'none'.
    """
    if launcher == 'none':
        return 1
    env = os.environ
    if launcher == 'pytorch':
        _require(launcher, *_RANK_NAMES)
    elif launcher == 'slurm':
        _require(launcher, 'SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_NTASKS')
        env['RANK'] = env['SLURM_PROCID']
        env['LOCAL_RANK'] = env['SLURM_LOCALID']
        env['WORLD_SIZE'] = env['SLURM_NTASKS']
        if port is not None:
            env['MASTER_PORT'] = str(port)
        if 'MASTER_ADDR' not in env:
            env['MASTER_ADDR'] = _slurm_host_of_rank_0()
    elif launcher == 'mpi':
        prefix = 'OMPI_COMM_WORLD_'
        names = [prefix + name for name in ('RANK', 'LOCAL_RANK', 'SIZE')]
        _require(launcher, *names)
        for name, given in zip(_RANK_NAMES, names, strict=True):
            env[name] = env[given]
    else:
        raise LaunchError(
            f'unknown launcher {launcher!r}: choose none, pytorch, slurm or '
            'mpi.'
        )
    env.setdefault('MASTER_PORT', _DEFAULT_PORT)
    _require(launcher, 'MASTER_ADDR')
    gpus, local_rank = torch.cuda.device_count(), int(env['LOCAL_RANK'])
    if 0 < gpus <= local_rank:
        raise LaunchError(
            f'rank {env["RANK"]} is process {local_rank} of this machine, '
            f'which shows {gpus} GPU(s): start at most {gpus} processes here, '
            'or let the launcher show all GPUs to each process.'
        )
    if gpus and torch.version.cuda is not None:
        env.setdefault('NCCL_LAUNCH_ORDER_IMPLICIT', '1')
    return int(env['WORLD_SIZE'])


def init_distributed(launcher: str, dist_cfg: Mapping | None = None) -> int:
    """Join the distributed run, if there is one. Call before the Runner.

    On the CPU this makes the default process group, with gloo in the place
    of NCCL. On an accelerator it only exports this rank's variables.

    Args:
        launcher (str): 'none', 'pytorch', 'slurm' or 'mpi'.
        dist_cfg (Mapping, optional): ``cfg.env_cfg.dist_cfg``: ``backend``,
            ``timeout`` (seconds), ``port`` (Slurm) and further arguments of
            :func:`torch.distributed.init_process_group`.

    Returns:
        int: The world size; 1 for 'none'.
    """
    options = dict(dist_cfg or {})
    world_size = export_rank(launcher, options.pop('port', None))
    if launcher == 'none' or get_device() != 'cpu' or dist.is_initialized():
        return world_size
    # MMEngine's own: by which program its start-up joins.
    options.pop('init_backend', None)
    backend = options.pop('backend', 'nccl')
    if options.get('timeout') is not None:
        options['timeout'] = timedelta(seconds=options['timeout'])
    dist.init_process_group(
        'gloo' if backend == 'nccl' else backend, **options
    )
    return world_size


def _require(launcher: str, *names: str) -> None:
    missing = [name for name in names if name not in os.environ]
    if missing:
        starter = {
            'pytorch': 'torchrun (tools/dist_train.sh, tools/dist_test.sh)',
            'slurm': 'srun (tools/slurm_train.sh, tools/slurm_test.sh)',
            'mpi': "Open MPI's mpirun, with MASTER_ADDR exported",
        }[launcher]
        raise LaunchError(
            f'--launcher {launcher} needs {", ".join(missing)} in the '
            f'environment: start this program with {starter}.'
        )


def _slurm_host_of_rank_0() -> str:
    """Name the node on which task 0 of this job step runs.

    It is the first of the step's nodes, unless tasks were dealt out as a file
    said (``srun --distribution=arbitrary``): then Slurm is asked.
    """
    env = os.environ
    if '0' in env.get('SLURM_GTIDS', env['SLURM_PROCID']).split(','):
        own = env.get('SLURMD_NODENAME')
        if own:
            return own
    if 'arbitrary' in env.get('SLURM_DISTRIBUTION', '') or any(
        name in env for name in ('SLURM_HOSTFILE', 'SLURM_ARBITRARY_NODELIST')
    ):
        return _host_by_layout()
    # srun may have been given a part of the job's nodes.
    for name in ('SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST'):
        if env.get(name):
            break
    else:
        name = 'SLURM_NODELIST'
        _require('slurm', name)
    return _ask_slurm('scontrol', 'show', 'hostnames', env[name]).split()[0]


def _host_by_layout() -> str:
    _require('slurm', 'SLURM_JOB_ID', 'SLURM_STEP_ID')
    step = '{SLURM_JOB_ID}.{SLURM_STEP_ID}'.format_map(os.environ)
    layout = _ask_slurm('sattach', '--layout', step)
    for line in layout.splitlines():
        node = _NODE.fullmatch(line)
        if node and '0' in node['tasks'].split():
            return node['name']
    raise LaunchError(_UNKNOWN_HOST.format(f'sattach --layout: {layout}'))


def _ask_slurm(*command: str) -> str:
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f'{" ".join(command)}: {error}'
        raise LaunchError(_UNKNOWN_HOST.format(reason)) from error
    if not said.strip():
        reason = f'{" ".join(command)} says nothing'
        raise LaunchError(_UNKNOWN_HOST.format(reason))
    return said
