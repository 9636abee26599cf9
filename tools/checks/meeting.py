# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All ranks of a run come together; a rank that does not is named."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from mmdet_megdet.errors import LaunchError
from mmdet_megdet.runtime.launch import export_rank

_KEY = 'megdet_doctor'
_PERIOD = 0.05  # seconds between two looks
_GRACE = 5.0  # seconds for the others to hear


class Meeting(NamedTuple):
    """The ranks, together.

    Attributes:
        rank (int): This process.
        names (list[str]): ``host:rank`` of every rank.
        device (torch.device): This rank's.
        control (ProcessGroup): gloo, for what is said between checks.
    """

    rank: int
    names: list[str]
    device: torch.device
    control: dist.ProcessGroup

    def gather(self, value: object) -> list:
        """What each rank says, by rank."""
        values = [None] * len(self.names)
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, value: object) -> object:
        """What rank 0 says."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def listed(self, ranks: list[int], most: int = 8) -> str:
        """Ranks by name."""
        rest = len(ranks) - most
        names = ', '.join(self.names[rank] for rank in ranks[:most])
        return names + (f' and {rest} more' if rest > 0 else '')


def meet(launcher: str, timeout: float, port: int | None = None) -> Meeting:
    """Join the distributed run: NCCL on GPUs, gloo on CPUs.

    Args:
        launcher (str): 'pytorch', 'slurm' or 'mpi'.
        timeout (float): Seconds to wait for the other ranks, here and in
            collectives.
        port (int, optional): Port of rank 0 under Slurm.

    Raises:
        LaunchError: On every rank that is there, if one is not, by number.
    """
    world_size = export_rank(launcher, port)
    rank = int(os.environ['RANK'])
    patience = timedelta(seconds=timeout)
    store = _store(rank, patience)
    names = _everyone(store, rank, world_size, timeout)
    device, backend = torch.device('cpu'), 'gloo'
    if torch.cuda.is_available():
        device = torch.device('cuda', int(os.environ['LOCAL_RANK']))
        torch.cuda.set_device(device)
        backend = 'nccl'
    dist.init_process_group(
        backend,
        store=dist.PrefixStore('groups', store),
        rank=rank,
        world_size=world_size,
        timeout=patience,
    )
    control = dist.new_group(backend='gloo', timeout=patience)
    dist.monitored_barrier(control, patience, wait_all_ranks=True)
    return Meeting(rank, names, device, control)


def _store(rank: int, patience: timedelta) -> dist.Store:
    """Torchrun's store, or rank 0's; not waiting for the other ranks.

    That wait could not say which of them are missing.
    """
    host, port = os.environ['MASTER_ADDR'], os.environ['MASTER_PORT']
    by_torchrun = os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == 'True'
    try:
        store = dist.TCPStore(
            host,
            int(port),
            is_master=rank == 0 and not by_torchrun,
            timeout=patience,
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        holder = 'torchrun' if by_torchrun else 'rank 0'
        raise LaunchError(
            f'rank {rank} on {socket.gethostname()} cannot reach {holder} at '
            f'{host}:{port} within {patience.total_seconds():g} s '
            f'({_first_line(error)}): is {holder} running there, and does '
            'every machine reach that address and port?'
        ) from None
    attempt = os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')
    return dist.PrefixStore(f'{_KEY}/{attempt}', store)


def _first_line(error: Exception) -> str:
    return str(error).strip().split('\n')[0][:200]


def _everyone(
    store: dist.Store, rank: int, world_size: int, timeout: float
) -> list[str]:
    """Names of all ranks; rank 0 looks for them and tells the others."""
    own = f'{socket.gethostname()}:{rank}'
    try:
        store.set(str(rank), own)
        if rank == 0:
            here = _there(store, range(world_size), timeout)
            store.set('here', ','.join(map(str, here)))
        elif not _there(store, ['here'], timeout + _GRACE):
            here = [r for r in range(1, world_size) if r == rank]
        else:
            here = [int(r) for r in store.get('here').decode().split(',')]
        names = [store.get(str(r)).decode() for r in here]
        store.set(f'heard {rank}', '')
        if rank == 0:
            # Its end may be that of the store.
            _there(store, [f'heard {r}' for r in here], _GRACE)
    except RuntimeError as error:
        raise LaunchError(
            f'{own} has lost the others while they met '
            f'({_first_line(error)}): look at what rank 0 says.'
        ) from None
    missing = [str(r) for r in range(world_size) if r not in here]
    if not missing:
        return names
    raise LaunchError(
        f'rank {", ".join(missing)} of {world_size} did not arrive within '
        f'{timeout:g} s (there are {", ".join(names)}): look at what that '
        'process does on its machine, from a slow file system under the '
        'Python packages to one that was never started. --timeout waits '
        'longer.'
    )


def _there(store: dist.Store, keys: Iterable, timeout: float) -> list:
    """Which keys are there, once all are or the time is over."""
    until = time.monotonic() + timeout
    keys = list(keys)
    absent = list(keys)
    while absent and time.monotonic() < until:
        absent = [key for key in absent if not store.check([str(key)])]
        if absent:
            time.sleep(_PERIOD)
    return [key for key in keys if key not in absent]
