# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the machine has and allows: GPUs, kernels, variables, limits."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from rich.filesize import decimal

from .report import Finding, failure, passed, reason, warning

# What MMEngine's Runner raises the soft limit to.
_OPEN_FILES = 4096
_FEW_OPEN_FILES = 1024
# Docker's default is 64 MB, which one batch of large images fills.
_SHARED_MEMORY = 1 << 30
PLAIN_REMEDY = (
    'Training goes on with plain operations, as exact and slower. Where '
    'triton is missing: pip install the one that this torch asks for.'
)
# Left behind by somebody who looked for a fault.
_COSTLY = {
    ('TORCH_DISTRIBUTED_DEBUG', 'DETAIL'): 'every collective is checked '
    'against the other ranks first',
    ('CUDA_LAUNCH_BLOCKING', '1'): 'the host waits for every CUDA kernel',
    ('TORCH_NCCL_ASYNC_ERROR_HANDLING', '0'): 'a rank whose collective '
    'never ends waits for ever',
}


def check_gpus() -> Iterator[Finding]:
    """Compute on each GPU, where torch could be imported."""
    torch = sys.modules.get('torch')
    if torch is None:
        return
    if not torch.cuda.is_available():
        text = f'torch, built for CUDA {torch.version.cuda}, sees none'
        if Path('/proc/driver/nvidia/version').is_file():
            yield warning(
                'GPU',
                f'{text}, and there is an NVIDIA driver',
                'Hold the CUDA version that nvidia-smi shows against '
                "torch's; look at CUDA_VISIBLE_DEVICES, and whether the "
                'container has GPUs (--gpus all).',
            )
        else:
            yield passed('GPU', f'{text}: runs on the CPU, with gloo')
        return
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
        if (ones @ ones).sum().item() != 256**3:
            raise ArithmeticError('a product of matrices came out wrong')
    except Exception as error:
        return failure(
            f'GPU {index}',
            f'{text}: {reason(error)}',
            'Free it of other programs (nvidia-smi), install a torch that '
            f'has kernels for it (this one: {torch.cuda.get_arch_list()}), or '
            'leave it out (CUDA_VISIBLE_DEVICES).',
        )
    return passed(f'GPU {index}', text)


def check_kernels() -> Iterator[Finding]:
    """Run all kernels on each GPU, at small sizes and at a ResNet-50's."""
    import torch

    from mmdet_megdet.sync_bn import kernels

    names = [f'cuda:{place}' for place in range(torch.cuda.device_count())]
    for name in names or ['cpu']:
        device = torch.device(name)
        outcome, fault = kernels.outcome(device), kernels.fault(device)
        if fault is None and outcome == kernels.TRITON:
            fault = kernels.check.find_fault_at_real_sizes(device)
            outcome += ', small and of the sizes of a ResNet-50'
        if fault is None:
            yield passed('kernels', f'{name}: {outcome}')
        else:
            text = f'{name}: Triton kernels: {fault}'
            yield warning('kernels', text, PLAIN_REMEDY)


def check_surroundings(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Check environment variables, and limits that data loaders run into."""
    for (name, value), price in _COSTLY.items():
        if settings.get(name) == value:
            yield warning(
                'environment variables',
                f'{name}={value}: {price}',
                f'unset {name} to train.',
            )
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield check_open_files(files)
    shared = Path('/dev/shm')
    free = shutil.disk_usage(shared).free if shared.is_dir() else 0
    yield check_shared_memory(free)


def check_open_files(hard: int) -> Finding:
    """Check the limit of open files: one for each tensor handed over."""
    if hard == resource.RLIM_INFINITY or hard >= _OPEN_FILES:
        return passed('open files', 'the limit is high enough')
    return (failure if hard < _FEW_OPEN_FILES else warning)(
        'open files',
        f'the hard limit is {hard}, and data loaders may need {_OPEN_FILES}',
        f'ulimit -Hn {_OPEN_FILES} as root, LimitNOFILE= of the service, or '
        f'--ulimit nofile={_OPEN_FILES} of the container.',
    )


def check_shared_memory(free: int) -> Finding:
    """Check the memory through which data loaders hand over batches."""
    text = f'{decimal(free)} free in /dev/shm'
    if free >= _SHARED_MEMORY:
        return passed('shared memory', text)
    return warning(
        'shared memory',
        f'{text}, where data loaders put their batches',
        'Give the container more (docker run --shm-size=16g, or --ipc=host); '
        'fewer or no workers (num_workers) need less.',
    )
