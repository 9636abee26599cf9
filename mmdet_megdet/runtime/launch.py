# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Joining a distributed run, on GPUs (NCCL) or on CPUs (gloo).

MMEngine's own start-up always selects a CUDA device.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from mmengine.device import get_device
from mmengine.dist import init_dist
from mmengine.utils.dl_utils import set_multi_processing

from ..errors import LaunchError

_DEFAULT_PORT = '29500'  # torch.distributed's and MMEngine's


def export_rank(launcher: str, port: int | None = None) -> int:
    """Translate a launcher's environment into torch's variables.

    Sets what ``mmengine.dist.init_dist`` does, so that either may do it. On
    NVIDIA's GPUs NCCL_LAUNCH_ORDER_IMPLICIT=1 too, unless it is set: the
    communicators' kernels then start in the host's order, on all ranks alike.

    ``port`` is rank 0's under Slurm, in the place of MASTER_PORT. Returns the
    world size; 1 for the launcher 'none'.
    """
    if launcher == 'none':
        return 1
    env = os.environ
    if launcher == 'pytorch':
        _require(launcher, 'RANK', 'LOCAL_RANK', 'WORLD_SIZE')
    elif launcher == 'slurm':
        _require(launcher, 'SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_NTASKS')
        env['RANK'] = env['SLURM_PROCID']
        env['LOCAL_RANK'] = env['SLURM_LOCALID']
        env['WORLD_SIZE'] = env['SLURM_NTASKS']
        if port is not None:
            env['MASTER_PORT'] = str(port)
        if 'MASTER_ADDR' not in env:
            env['MASTER_ADDR'] = _slurm_host_of_rank_0()
    else:
        raise LaunchError(f'no launcher {launcher!r}: none, pytorch, slurm.')
    env.setdefault('MASTER_PORT', _DEFAULT_PORT)
    _require(launcher, 'MASTER_ADDR')
    gpus, local_rank = torch.cuda.device_count(), int(env['LOCAL_RANK'])
    if 0 < gpus <= local_rank:
        raise LaunchError(
            f'rank {env["RANK"]} is process {local_rank} of this machine, '
            f'which shows it {gpus} GPU(s): start fewer processes, or let the '
            'launcher show all GPUs to each.'
        )
    if gpus and torch.version.cuda is not None:
        env.setdefault('NCCL_LAUNCH_ORDER_IMPLICIT', '1')
    return int(env['WORLD_SIZE'])


def init_distributed(launcher: str, env_cfg: Mapping | None = None) -> int:
    """Join the distributed run, if there is one. Call before the Runner.

    By the config's ``env_cfg``, as the Runner would; on the CPU with gloo in
    the place of NCCL. Returns the world size.
    """
    env_cfg = env_cfg or {}
    options = dict(env_cfg.get('dist_cfg') or {})
    world_size = export_rank(launcher, options.pop('port', None))
    if launcher == 'none' or dist.is_initialized():
        return world_size
    if get_device() != 'cpu':
        # Sets how workers start, which init_dist would set otherwise.
        set_multi_processing(**env_cfg.get('mp_cfg', {}), distributed=True)
        init_dist('pytorch', **options)
        return world_size
    # MMEngine's own: by which program its start-up joins.
    options.pop('init_backend', None)
    if options.setdefault('backend', 'nccl') == 'nccl':
        options['backend'] = 'gloo'
    if options.get('timeout') is not None:
        options['timeout'] = timedelta(seconds=options['timeout'])
    dist.init_process_group(**options)
    return world_size


def _require(launcher: str, *names: str) -> None:
    missing = [name for name in names if name not in os.environ]
    if missing:
        kind = 'slurm' if launcher == 'slurm' else 'dist'
        raise LaunchError(
            f'--launcher {launcher} needs {", ".join(missing)} in the '
            f'environment: start this program by tools/{kind}_train.sh or '
            f'tools/{kind}_test.sh.'
        )


def _slurm_host_of_rank_0() -> str:
    """Name the node of task 0, the first of this job step's."""
    env = os.environ
    names = ('SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST', 'SLURM_NODELIST')
    nodes = next(filter(None, map(env.get, names)), None)
    if nodes is None:
        _require('slurm', 'SLURM_NODELIST')
    if 'arbitrary' in env.get('SLURM_DISTRIBUTION', '') or any(
        name in env for name in ('SLURM_HOSTFILE', 'SLURM_ARBITRARY_NODELIST')
    ):
        raise LaunchError(
            'under srun --distribution=arbitrary rank 0 may be on any node: '
            'set MASTER_ADDR to it.'
        )
    command = ('scontrol', 'show', 'hostnames', str(nodes))
    try:
        return subprocess.check_output(command, text=True).split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise LaunchError(
            f"cannot tell rank 0's host ({' '.join(command)}: {error}): set "
            'MASTER_ADDR to it.'
        ) from error
