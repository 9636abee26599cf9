# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the machine has and allows: GPUs, kernels, memory, files, disk."""

from __future__ import annotations

import re
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from .packages import SET_UP
from .report import Finding, failure, passed, readable_bytes, reason, warning

# What MMEngine's Runner raises the soft limit to.
_OPEN_FILES = 4096
_FEW_OPEN_FILES = 1024
# Docker's default is 64 MB, which one batch of large images fills.
_SHARED_MEMORY = 1 << 30
PLAIN_REMEDY = (
    'Training goes on with plain operations, as exact and slower. Where '
    'triton is missing: pip install the one that this torch asks for.'
)


class LoaderNeed(NamedTuple):
    """What the data loaders of a machine's ranks keep in shared memory.

    Attributes:
        batches (int): Batches under way at the same time.
        size (float): Bytes of one.
    """

    batches: int
    size: float


def check_gpus() -> Iterator[Finding]:
    """Check driver and GPUs, where torch has been imported."""
    torch = sys.modules.get('torch')
    if torch is None:
        return
    driver, built_for = _driver(), torch.version.cuda
    if built_for is None and driver is None:
        yield passed('GPU', 'none: runs on the CPU, with gloo')
    elif built_for is None:
        yield warning(
            'GPU',
            f'there is an NVIDIA driver {driver}, but this torch is a CPU '
            'build',
            'Install a CUDA build of torch, then mmcv anew.',
        )
    elif not torch.cuda.is_available():
        yield (warning if driver is None else failure)(
            'GPU',
            f'torch is built for CUDA {built_for} and sees no GPU; driver: '
            f'{driver or "none"}',
            'nvidia-smi shows which CUDA version the driver goes up to: it '
            "must be torch's or later. Look at CUDA_VISIBLE_DEVICES and at "
            'the container too (--gpus all).',
        )
    else:
        yield passed('driver', driver or 'unknown')
        for index in range(torch.cuda.device_count()):
            yield _gpu_works(torch, index)


def _gpu_works(torch: ModuleType, index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    text = (
        f'{properties.name}, {properties.total_memory / 2**30:.0f} GiB, '
        f'sm_{properties.major}{properties.minor}'
    )
    try:
        ones = torch.ones(256, 256, device=f'cuda:{index}')
        right = (ones @ ones).sum().item() == 256**3
    except Exception as error:
        return failure(
            f'GPU {index}',
            f'{text}: {reason(error)}',
            f'This torch has kernels for {torch.cuda.get_arch_list()}: '
            'install one that has them for this GPU; or free the GPU of '
            'other programs (nvidia-smi).',
        )
    if not right:
        return failure(
            f'GPU {index}',
            f'{text}: a product of matrices came out wrong',
            'Take this GPU out of use (CUDA_VISIBLE_DEVICES).',
        )
    return passed(f'GPU {index}', text)


def _driver() -> str | None:
    """Return the NVIDIA kernel driver's version, where there is one."""
    path = Path('/proc/driver/nvidia/version')
    if not path.is_file():
        return None
    found = re.search(r'\b\d+\.\d+(\.\d+)?\b', path.read_text())
    return found[0] if found else 'unknown'


def check_communication() -> Iterator[Finding]:
    """Check by what ranks would talk to each other."""
    torch = sys.modules.get('torch')
    if torch is None:
        return
    import torch.distributed as dist

    wanted = 'nccl' if torch.cuda.is_available() else 'gloo'
    if not dist.is_available() or not dist.is_backend_available(wanted):
        yield failure(
            'communication',
            f'this torch was built without {wanted}',
            f'Install another build. {SET_UP}',
        )
    elif dist.is_nccl_available():
        version = '.'.join(map(str, torch.cuda.nccl.version()))
        yield passed('communication', f'NCCL {version}; gloo on CPUs')
    else:
        yield passed('communication', 'gloo (no NCCL in this build)')


def check_kernels() -> Iterator[Finding]:
    """Run all kernels on each GPU, at small sizes and at a ResNet-50's."""
    try:
        import torch

        from mmdet_megdet.sync_bn import kernels
    except Exception:
        return  # the package's own line says so
    names = [f'cuda:{place}' for place in range(torch.cuda.device_count())]
    for name in names or ['cpu']:
        device = torch.device(name)
        try:
            outcome, fault = kernels.outcome(device), kernels.fault(device)
            if fault is None and outcome == kernels.TRITON:
                fault = kernels.check.find_fault_at_real_sizes(device)
                outcome += ', small and of the sizes of a ResNet-50'
        except (RuntimeError, ValueError) as error:
            yield failure('kernels', str(error), 'Do what this says.')
            continue
        if fault is None:
            yield passed('kernels', f'{name}: {outcome}')
        else:
            text = f'{name}: Triton kernels: {fault}'
            yield warning('kernels', text, PLAIN_REMEDY)


def check_limits() -> Iterator[Finding]:
    """Check the limits that data loaders and InfiniBand run into."""
    yield check_open_files()
    yield from check_locked_memory()
    yield check_shared_memory()


def check_open_files(limits: tuple[int, int] | None = None) -> Finding:
    """Check the limit of open files, which data loaders use up.

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
        return passed('open files', text)
    return (failure if hard < _FEW_OPEN_FILES else warning)(
        'open files',
        text,
        f'Raise the hard limit to {_OPEN_FILES} or more: ulimit -Hn '
        f'{_OPEN_FILES} as root, LimitNOFILE= of the service, or --ulimit '
        f'nofile={_OPEN_FILES} of the container. Data loaders hold an open '
        'file for every tensor that they hand over.',
    )


def check_locked_memory(
    devices: Path = Path('/sys/class/infiniband'), limit: int | None = None
) -> Iterator[Finding]:
    """Check, where there is InfiniBand, the memory that it may pin."""
    if not devices.is_dir() or not any(devices.iterdir()):
        return
    if limit is None:
        _, limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        yield passed('locked memory', 'unlimited, as InfiniBand wants it')
    else:
        yield warning(
            'locked memory',
            f'limited to {readable_bytes(limit)}, and this machine has '
            'InfiniBand',
            'ulimit -l unlimited, or --ulimit memlock=-1 of the container: '
            'NCCL pins its buffers and fails where it may not.',
        )


def check_shared_memory(
    need: LoaderNeed | None = None, path: str = '/dev/shm'
) -> Finding:
    """Check the memory through which data loaders hand over batches.

    Args:
        need (LoaderNeed, optional): What the config's data loaders keep
            there. Defaults to None: not known.
        path (str): Where it is mounted.
    """
    check = 'shared memory'
    if not Path(path).is_dir():
        return failure(
            check,
            f'{path} does not exist',
            f'Mount a tmpfs there (mount -t tmpfs tmpfs {path}), or set '
            'num_workers=0 in the dataloaders.',
        )
    usage = shutil.disk_usage(path)
    text = (
        f'{readable_bytes(usage.free)} free of {readable_bytes(usage.total)}'
    )
    remedy = (
        'Give the container more (docker run --shm-size=16g, or --ipc=host), '
        f'or remount it: mount -o remount,size=16G {path}. Fewer or no '
        'workers (num_workers) need less.'
    )
    if need is None:
        if usage.free < _SHARED_MEMORY:
            return warning(check, text, remedy)
        return passed(check, text)
    wanted = need.batches * need.size
    text += (
        f'; the data loaders keep up to {need.batches} batches of '
        f'{readable_bytes(need.size)} there = {readable_bytes(wanted)}'
    )
    return _enough(check, text, remedy, usage.free, wanted)


def check_disk(folder: str, size: int, number: float, what: str) -> Finding:
    """Check whether a run's checkpoints fit.

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
    return _enough(
        'disk',
        f'{readable_bytes(free)} free for {folder}; {number:g} checkpoints of '
        f'about {readable_bytes(size)} = {readable_bytes(wanted)} ({what})',
        'Free some space, choose another --work-dir, or keep fewer: '
        'default_hooks.checkpoint.max_keep_ckpts=N.',
        free,
        wanted,
    )


def _enough(
    check: str, text: str, remedy: str, free: float, wanted: float
) -> Finding:
    if free < wanted:
        return failure(check, text, remedy)
    if free < 2 * wanted:
        return warning(check, text, remedy)
    return passed(check, text)
