# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All ranks of a run come together, and compare what they have."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from mmdet_megdet.annotations import configured
from mmdet_megdet.errors import LaunchError
from mmdet_megdet.faults.same_run import settings, versions
from mmdet_megdet.ranks import differences
from mmdet_megdet.runtime import export_rank
from mmdet_megdet.text import these_ranks

from .report import Finding, failure, passed, warning

_PERIOD = 0.05  # seconds between two looks
_GRACE = 5.0  # seconds for the others to look
_PREFIXES = ('NCCL_', 'TORCH_NCCL_', 'GLOO_')
_MACHINE = 'GPU and variables'
_REMEDIES = {
    'versions': 'Install the same on all machines (make setup, from the '
    'lock), and bring them to the same commit of this repository.',
    'config': 'Start all ranks with the same file, options and environment '
    'variables.',
    'annotation files': 'Copy the file to all machines, or put it where all '
    'of them read it.',
    _MACHINE: 'The slowest GPU sets the pace of all; export the same '
    'variables, unless the networks of the machines differ.',
}


class Meeting(NamedTuple):
    """The ranks, with this one's device and a gloo group between checks."""

    rank: int
    hosts: list[str]
    device: torch.device
    control: dist.ProcessGroup

    def gather(self, value: object) -> list:
        """Return what each rank says, by rank; a collective."""
        values = [None] * len(self.hosts)
        dist.all_gather_object(values, value, group=self.control)
        return values

    def __str__(self) -> str:
        """Return where the ranks are."""
        ranks: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            ranks.setdefault(host, []).append(rank)
        texts = (f'{host}: {these_ranks(ranks[host])}' for host in ranks)
        return '; '.join(texts)


def meet(launcher: str, timeout: float) -> Meeting:
    """Join the run: NCCL on GPUs, gloo on CPUs, with this timeout."""
    world_size = export_rank(launcher)
    rank = int(os.environ['RANK'])
    patience = timedelta(seconds=timeout)
    store = join_store(rank, patience)
    wait_for_ranks(store, rank, world_size, timeout)
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
    hosts = [''] * world_size
    dist.all_gather_object(hosts, socket.gethostname(), group=control)
    return Meeting(rank, hosts, device, control)


def join_store(rank: int, patience: timedelta) -> dist.Store:
    """Return torchrun's store, or rank 0's, before all ranks have joined."""
    host, port = os.environ['MASTER_ADDR'], os.environ['MASTER_PORT']
    by_torchrun = os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == 'True'
    store = dist.TCPStore(
        host,
        int(port),
        is_master=rank == 0 and not by_torchrun,
        timeout=patience,
        wait_for_workers=False,
    )
    attempt = os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')
    return dist.PrefixStore(f'megdet_doctor/{attempt}', store)


def wait_for_ranks(
    store: dist.Store, rank: int, world_size: int, timeout: float
) -> None:
    """Return when all ranks are there, or raise with the missing numbers."""
    own = socket.gethostname()
    until = time.monotonic() + timeout
    try:
        store.set(str(rank), own)
        store.add('there', 1)
        while store.add('there', 0) < world_size:
            if time.monotonic() > until:
                break
            time.sleep(_PERIOD)
        else:
            return
        found = [r for r in range(world_size) if store.check([str(r)])]
        there = [f'{r} on {store.get(str(r)).decode()}' for r in found]
    except RuntimeError as error:
        raise LaunchError(
            f'rank {rank} on {own} has lost the others while they met '
            f'({str(error)[:200]}): look at what rank 0 says.'
        ) from None
    if rank == 0:
        # Its end may be that of the store, where the others look.
        time.sleep(_GRACE)
    missing = sorted({*range(world_size)} - {*found})
    raise LaunchError(
        f'{these_ranks(missing)} of {world_size} did not arrive within '
        f'{timeout:g} s (there are {", ".join(there)}): look at what that '
        'process does on its machine, from a slow file system under the '
        'Python packages to one that was never started. --timeout waits '
        'longer.'
    )


def check_same(meeting: Meeting, config: Any) -> Iterator[Finding]:
    """Compare what the ranks run, with their configs; a collective."""
    facts: dict[str, dict[str, str]] = {'versions': versions()}
    if config is not None:
        facts['config'] = settings(config.to_dict())
        facts['annotation files'] = annotation_files(config)
    here = {n: v for n, v in os.environ.items() if n.startswith(_PREFIXES)}
    if torch.cuda.is_available():
        here['GPU'] = torch.cuda.get_device_name()
    facts[_MACHINE] = here
    for check, own in facts.items():
        found = differences(meeting.gather(own))
        if found is not None:
            kind = warning if check == _MACHINE else failure
            yield kind(check, found, _REMEDIES[check])
            continue
        shown = [f'{name} {own[name]}' for name in sorted(own)]
        # A config has hundreds of settings.
        text = ', '.join(shown) if len(shown) < 20 else f'{len(own)} settings'
        yield passed(check, f'the same on all ranks: {text or "none"}')


def annotation_files(config: Any) -> dict[str, str]:
    """Return the annotation files of a training, each with its content."""
    uses, evaluations, _ = configured(config, ('train', 'val'))
    paths = dict.fromkeys(x.path for x in [*uses, *evaluations])
    return {path: _digest(Path(path)) for path in paths}


def _digest(path: Path) -> str:
    if not path.is_file():
        return 'not there'
    with path.open('rb') as file:
        digest = hashlib.blake2b(digest_size=6)
        while part := file.read(1 << 22):
            digest.update(part)
    return f'{path.stat().st_size} bytes, digest {digest.hexdigest()}'
