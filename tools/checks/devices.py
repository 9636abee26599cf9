# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""GPUs, their driver, and the library by which ranks communicate."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from .report import Finding, failure, passed, reason, warning

SET_UP = 'make setup installs versions that fit each other'


def check_gpus() -> Iterator[Finding]:
    """Driver and GPUs, where torch has been imported and did not fail."""
    torch = sys.modules.get('torch')
    if torch is None:
        return
    driver = _driver()
    if torch.version.cuda is None:
        if driver is None:
            yield passed('GPU', 'none: runs on the CPU, with gloo')
        else:
            yield warning(
                'GPU',
                f'there is an NVIDIA driver {driver}, but this torch is a '
                'CPU build',
                'Install a CUDA build of torch, then mmcv anew.',
            )
        return
    if not torch.cuda.is_available():
        yield (warning if driver is None else failure)(
            'GPU',
            f'torch is built for CUDA {torch.version.cuda} and sees no GPU; '
            f'driver: {driver or "none"}',
            'nvidia-smi shows which CUDA version the driver goes up to: it '
            "must be torch's or later. Look at CUDA_VISIBLE_DEVICES and at "
            'the container too (--gpus all).',
        )
        return
    yield passed('driver', f'{driver or "unknown"}')
    for index in range(torch.cuda.device_count()):
        yield _gpu_works(torch, index)


def _gpu_works(torch, index: int) -> Finding:
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
    """The NVIDIA kernel driver's version, where there is one."""
    path = Path('/proc/driver/nvidia/version')
    if not path.is_file():
        return None
    found = re.search(r'\b\d+\.\d+(\.\d+)?\b', path.read_text())
    return found[0] if found else 'unknown'


def check_communication() -> Iterator[Finding]:
    """What ranks would talk to each other by."""
    torch = sys.modules.get('torch')
    if torch is None:
        return
    import torch.distributed as dist

    if not dist.is_available():
        yield failure(
            'communication',
            'this torch was built without torch.distributed',
            f'Install another build. {SET_UP}.',
        )
        return
    if dist.is_nccl_available():
        version = '.'.join(map(str, torch.cuda.nccl.version()))
        yield passed('communication', f'NCCL {version}; gloo on CPUs')
    elif torch.cuda.is_available():
        yield failure(
            'communication',
            'there are GPUs, and this torch was built without NCCL',
            'Install a build of torch with NCCL.',
        )
    elif dist.is_gloo_available():
        yield passed('communication', 'gloo (no NCCL in this build)')
    else:
        yield failure(
            'communication',
            'this torch has neither NCCL nor gloo',
            f'Install another build. {SET_UP}.',
        )
