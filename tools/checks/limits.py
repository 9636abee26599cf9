# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the machine lets a process have: memory to share, files, disk."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .report import Finding, failure, gigabytes, passed, warning

# What MMEngine's Runner raises the soft limit to.
_OPEN_FILES = 4096
_FEW_OPEN_FILES = 1024
# Docker's default is 64 MB, which one batch of large images fills.
_SHARED_MEMORY = 1 << 30


class LoaderNeed(NamedTuple):
    """What the data loaders of a machine's ranks keep in shared memory.

    Attributes:
        batches (int): Batches under way at the same time.
        size (float): Bytes of one.
    """

    batches: int
    size: float


def check_open_files(limits: tuple[int, int] | None = None) -> list[Finding]:
    """The limit of open files, which data loaders use up.

    Args:
        limits (tuple[int, int], optional): Soft and hard limit. Defaults to
            None: this process's.
    """
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    shown = ' / '.join(
        'unlimited' if n == unlimited else str(n) for n in (soft, hard)
    )
    text = f'soft / hard limit {shown}'
    if hard == unlimited or hard >= _OPEN_FILES:
        return [passed('open files', text)]
    remedy = (
        f'Raise the hard limit to {_OPEN_FILES} or more: ulimit -Hn '
        f'{_OPEN_FILES} as root, LimitNOFILE= of the service, or --ulimit '
        f'nofile={_OPEN_FILES} of the container. Data loaders hold an open '
        'file for every tensor that they hand over.'
    )
    kind = failure if hard < _FEW_OPEN_FILES else warning
    return [kind('open files', text, remedy)]


def check_shared_memory(
    need: LoaderNeed | None = None, path: str = '/dev/shm'
) -> list[Finding]:
    """The shared memory through which data loaders hand over batches.

    Args:
        need (LoaderNeed, optional): What the config's data loaders keep
            there. Defaults to None: not known.
        path (str): Where it is mounted.
    """
    check = 'shared memory'
    if not Path(path).is_dir():
        return [
            failure(
                check,
                f'{path} does not exist',
                f'Mount a tmpfs there (mount -t tmpfs tmpfs {path}), or set '
                'num_workers=0 in the dataloaders.',
            )
        ]
    usage = shutil.disk_usage(path)
    text = f'{gigabytes(usage.free)} free of {gigabytes(usage.total)}'
    remedy = (
        'Give the container more (docker run --shm-size=16g, or --ipc=host), '
        f'or remount it: mount -o remount,size=16G {path}. Fewer or no '
        'workers (num_workers) need less.'
    )
    if need is None:
        if usage.free < _SHARED_MEMORY:
            return [warning(check, text, remedy)]
        return [passed(check, text)]
    wanted = need.batches * need.size
    text += (
        f'; the data loaders keep up to {need.batches} batches of '
        f'{gigabytes(need.size)} there = {gigabytes(wanted)}'
    )
    if usage.free < wanted:
        return [failure(check, text, remedy)]
    if usage.free < 2 * wanted:
        return [warning(check, text, remedy)]
    return [passed(check, text)]


def check_locked_memory(
    devices: Path = Path('/sys/class/infiniband'),
    limit: int | None = None,
) -> Iterator[Finding]:
    """Where there is InfiniBand: the memory that it may pin."""
    if not devices.is_dir() or not any(devices.iterdir()):
        return
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if limit == resource.RLIM_INFINITY:
        yield passed('locked memory', 'unlimited, as InfiniBand wants it')
    else:
        yield warning(
            'locked memory',
            f'limited to {gigabytes(limit)}, and this machine has InfiniBand',
            'ulimit -l unlimited, or --ulimit memlock=-1 of the container: '
            'NCCL pins its buffers and fails where it may not.',
        )


def check_disk(
    folder: str, size: int, number: float, what: str
) -> list[Finding]:
    """Whether a run's checkpoints fit.

    Args:
        folder (str): The work folder, which may not be there yet.
        size (int): Bytes of a checkpoint.
        number (float): Most that are there at the same time.
        what (str): How both came about, in words.
    """
    place = Path(folder).resolve()
    while not place.exists():
        place = place.parent
    free, wanted = shutil.disk_usage(place).free, size * number
    text = (
        f'{gigabytes(free)} free for {folder}; {number:g} checkpoints of '
        f'about {gigabytes(size)} = {gigabytes(wanted)} ({what})'
    )
    remedy = (
        'Free some space, choose another --work-dir, or keep fewer: '
        'default_hooks.checkpoint.max_keep_ckpts=N.'
    )
    if free < wanted:
        return [failure('disk', text, remedy)]
    if free < 2 * wanted:
        return [warning('disk', text, remedy)]
    return [passed('disk', text)]
