# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All ranks of a run come together, and compare what they have."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from mmdet_megdet.annotations import configured
from mmdet_megdet.errors import LaunchError
from mmdet_megdet.faults.same_run import settings, versions
from mmdet_megdet.ranks import differences
from mmdet_megdet.runtime.launch import export_rank
from mmdet_megdet.text import these_ranks

from .report import Finding, failure, passed, warning

_KEY = 'megdet_doctor'
_PERIOD = 0.05  # seconds between two looks
_GRACE = 5.0  # seconds for the others to hear
_PREFIXES = ('NCCL_', 'TORCH_NCCL_', 'GLOO_')


class Meeting(NamedTuple):
    """The ranks, together.

    Attributes:
        rank (int): This process.
        hosts (list[str]): The host of every rank.
        device (torch.device): This rank's.
        control (ProcessGroup): gloo, for what is said between checks.
    """

    rank: int
    hosts: list[str]
    device: torch.device
    control: dist.ProcessGroup

    def gather(self, value: object) -> list:
        """Return what each rank says, by rank; a collective."""
        values = [None] * len(self.hosts)
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, value: object) -> object:
        """Return what rank 0 says; a collective."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def __str__(self) -> str:
        """Return where the ranks are."""
        ranks: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            ranks.setdefault(host, []).append(rank)
        texts = (f'{host}: {these_ranks(ranks[host])}' for host in ranks)
        return '; '.join(texts)


def meet(launcher: str, timeout: float) -> Meeting:
    """Join the distributed run: NCCL on GPUs, gloo on CPUs.

    Args:
        launcher (str): 'pytorch' or 'slurm'.
        timeout (float): Seconds to wait for the other ranks, here and in
            collectives.

    Raises:
        LaunchError: On every rank that is there, if one is not, by number.
    """
    world_size = export_rank(launcher)
    rank = int(os.environ['RANK'])
    patience = timedelta(seconds=timeout)
    store = _store(rank, patience)
    hosts = _hosts(store, rank, world_size, timeout)
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
    return Meeting(rank, hosts, device, control)


def _store(rank: int, patience: timedelta) -> dist.Store:
    """Return torchrun's store, or rank 0's; not waiting for the other ranks.

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


def _hosts(
    store: dist.Store, rank: int, world_size: int, timeout: float
) -> list[str]:
    """Return all ranks' hosts; rank 0 looks for them and tells the others."""
    own = socket.gethostname()
    try:
        store.set(str(rank), own)
        if rank == 0:
            here = _there(store, range(world_size), timeout)
            store.set('here', ','.join(map(str, here)))
        elif _there(store, ['here'], timeout + _GRACE):
            here = [int(r) for r in store.get('here').decode().split(',')]
        else:
            here = [rank]
        hosts = [store.get(str(r)).decode() for r in here]
        store.set(f'heard {rank}', '')
        if rank == 0:
            # Its end may be that of the store.
            _there(store, [f'heard {r}' for r in here], _GRACE)
    except RuntimeError as error:
        raise LaunchError(
            f'rank {rank} on {own} has lost the others while they met '
            f'({_first_line(error)}): look at what rank 0 says.'
        ) from None
    missing = [r for r in range(world_size) if r not in here]
    if not missing:
        return hosts
    there = (f'{r} on {h}' for r, h in zip(here, hosts, strict=True))
    raise LaunchError(
        f'{these_ranks(missing)} of {world_size} did not arrive within '
        f'{timeout:g} s (there are {", ".join(there)}): look at what that '
        'process does on its machine, from a slow file system under the '
        'Python packages to one that was never started. --timeout waits '
        'longer.'
    )


def _there(store: dist.Store, keys: Iterable, timeout: float) -> list:
    """Return which keys are there, once all are or the time is over."""
    until = time.monotonic() + timeout
    keys = list(keys)
    absent = keys
    while absent and time.monotonic() < until:
        absent = [key for key in absent if not store.check([str(key)])]
        if absent:
            time.sleep(_PERIOD)
    return [key for key in keys if key not in absent]


def check_same(meeting: Meeting, config: Any) -> Iterator[Finding]:
    """Compare what the ranks run; a collective.

    Args:
        meeting (Meeting): The ranks.
        config (Config, optional): This rank's config.
    """
    yield _compare(
        meeting,
        'versions',
        versions(),
        failure,
        'Install the same on all machines (make setup, from the lock), and '
        'bring them to the same commit of this repository.',
    )
    if config is not None:
        own = settings(config.to_dict())
        text = repr(sorted(own.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        # The settings themselves only where they differ.
        differ = len(set(meeting.gather(digest))) > 1
        yield _compare(
            meeting,
            'config',
            own if differ else {'digest': digest},
            failure,
            'Start all ranks with the same file, options and environment '
            'variables.',
        )
        yield _compare(
            meeting,
            'annotation files',
            annotation_files(config),
            failure,
            'Copy the file to all machines, or put it where all of them '
            'read it.',
        )
    yield _compare(
        meeting,
        'hardware',
        {'device': _hardware()},
        warning,
        'The slowest device sets the pace of all.',
    )
    yield _compare(
        meeting,
        'communication variables',
        {n: v for n, v in os.environ.items() if n.startswith(_PREFIXES)},
        warning,
        'Export the same on all machines, unless their networks differ.',
    )


def _compare(
    meeting: Meeting,
    check: str,
    facts: Mapping[str, str],
    kind: Callable[[str, str, str], Finding],
    remedy: str,
) -> Finding:
    found = differences(meeting.gather(dict(facts)))
    if found is not None:
        return kind(check, found, remedy)
    shown = ', '.join(f'{name} {facts[name]}' for name in sorted(facts))
    return passed(
        check, f'the same on all ranks: {shown}' if shown else 'none set'
    )


def _hardware() -> str:
    if not torch.cuda.is_available():
        return f'CPU, {platform.machine()}'
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f'{properties.name}, {properties.total_memory / 2**30:.0f} GiB'


def annotation_files(config: Any) -> dict[str, str]:
    """Return the annotation files of a training, each with its content."""
    uses, evaluations, _ = configured(config, ('train', 'val'))
    paths = dict.fromkeys(x.path for x in [*uses, *evaluations])
    return {path: _digest(Path(path)) for path in paths}


def _digest(path: Path) -> str:
    if not path.is_file():
        return 'not there'
    digest = hashlib.blake2b(digest_size=6)
    with path.open('rb') as file:
        while part := file.read(1 << 22):
            digest.update(part)
    return f'{path.stat().st_size} bytes, digest {digest.hexdigest()}'
