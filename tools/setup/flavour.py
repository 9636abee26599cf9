# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which mmcv ops this machine needs: CPU only, or CUDA as well.

Standard library only and without importing torch, which takes seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from errors import SetupError


class TorchVersion(NamedTuple):
    """What torch says of itself, e.g. ``('2.13.0+cu130', '13.0')``."""

    version: str
    cuda: str | None


def torch_version(venv: Path) -> TorchVersion:
    """Read the installed torch's version file.

    Raises:
        SetupError: If there is no torch in the venv.
    """
    found = sorted(venv.glob('lib/python3.*/site-packages/torch/version.py'))
    if not found:
        raise SetupError(
            f'torch is not installed in {venv}: run `make clean`, then set '
            'up again'
        )
    text = found[0].read_text()
    version = re.search(r"^__version__\s*=\s*'(.+)'", text, re.M)
    cuda = re.search(r"^cuda\b.*=\s*'(.+)'", text, re.M)
    if version is None:
        raise SetupError(f'{found[0]} names no version')
    return TorchVersion(version[1], cuda[1] if cuda else None)


def gpu_visible(
    env: Mapping[str, str] = os.environ, devices: Path = Path('/dev')
) -> bool:
    """Whether an NVIDIA GPU is there and not hidden from programs.

    ``FORCE_CUDA=1`` says so for a machine without one (a login node), and an
    empty ``CUDA_VISIBLE_DEVICES`` hides all GPUs, as for any CUDA program.
    """
    if env.get('FORCE_CUDA') == '1':
        return True
    if env.get('CUDA_VISIBLE_DEVICES', '0').strip() in ('', '-1'):
        return False
    return any(devices.glob('nvidia[0-9]*')) or (
        (devices / 'dxg').exists() and shutil.which('nvidia-smi') is not None
    )


def gpu_wanted(venv: Path) -> bool:
    """Whether mmcv needs CUDA ops: a GPU, and a torch that can use it."""
    return gpu_visible() and torch_version(venv).cuda is not None


def find_nvcc(env: Mapping[str, str] = os.environ) -> Path | None:
    """Where torch's extension builder would find nvcc."""
    homes = [env.get('CUDA_HOME'), env.get('CUDA_PATH')]
    for home in (*filter(None, homes), None, '/usr/local/cuda'):
        if home is None:
            on_path = shutil.which('nvcc', path=env.get('PATH'))
            if on_path:
                return Path(on_path)
        elif (Path(home) / 'bin' / 'nvcc').is_file():
            return Path(home) / 'bin' / 'nvcc'
    return None


def check_nvcc(nvcc: Path | None, cuda: str) -> None:
    """Refuse a GPU without a CUDA compiler that fits torch.

    Args:
        nvcc (Path | None): The compiler, if there is one.
        cuda (str): The CUDA version that torch was built with.

    Raises:
        SetupError: If nvcc is missing or of another major version.
    """
    remedy = (
        f'Install the CUDA toolkit {cuda} with nvcc on PATH or under '
        'CUDA_HOME; or point MEGDET_WHEELHOUSE to a folder with an mmcv wheel '
        'built for it; or hide the GPU (CUDA_VISIBLE_DEVICES= ) for CPU ops.'
    )
    if nvcc is None:
        raise SetupError(
            'there is a GPU, but no nvcc to compile the CUDA ops of mmcv. '
            + remedy
        )
    text = subprocess.run(
        [nvcc, '--version'], capture_output=True, text=True
    ).stdout
    release = re.search(r'release (\d+)\.(\d+)', text)
    if release is None or release[1] != cuda.split('.')[0]:
        found = f'{release[1]}.{release[2]}' if release else 'unknown'
        raise SetupError(
            f'{nvcc} is of CUDA {found}, torch of CUDA {cuda}: the major '
            f'versions must agree. {remedy}'
        )


def arch_list(env: Mapping[str, str] = os.environ) -> str:
    """The compute capabilities to compile for, e.g. ``'8.0;9.0'``.

    Raises:
        SetupError: If there is neither a GPU to ask nor a list.
    """
    if env.get('TORCH_CUDA_ARCH_LIST'):
        return env['TORCH_CUDA_ARCH_LIST']
    import torch

    if not torch.cuda.is_available():
        raise SetupError(
            'CUDA ops are asked for, but torch sees no GPU whose compute '
            'capability could be taken. Give it: TORCH_CUDA_ARCH_LIST=9.0'
        )
    capabilities = {
        torch.cuda.get_device_capability(i)
        for i in range(torch.cuda.device_count())
    }
    return ';'.join(
        f'{major}.{minor}' for major, minor in sorted(capabilities)
    )
