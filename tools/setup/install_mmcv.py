# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Installs mmcv with working ops into the venv that runs this.

The wheel comes from the folder MEGDET_WHEELHOUSE, else from the cache, else
from a build. Whatever its source, its ops are called before it is installed
or cached: a build without ops passes nowhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from build_mmcv import build
from errors import SetupError, main_with_errors
from flavour import (
    arch_list,
    check_nvcc,
    find_nvcc,
    gpu_visible,
    gpu_wanted,
    torch_version,
)
from packaging.requirements import Requirement
from wheels import cache_folder, fault_of, fault_of_mmcv, fitting_wheels, keep

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(sys.prefix)
BUILD = VENV / 'mmcv-build'
LOG = VENV / 'mmcv-build.log'


def pinned(path: Path) -> Requirement:
    """The one requirement in a file, which must name one version."""
    lines = [line.split('#')[0].strip() for line in path.open()]
    (line,) = filter(None, lines)
    return Requirement(line)


def first_working(folder: Path, name: str, version: str) -> Path | None:
    """The best wheel of a folder whose ops work; says why others do not."""
    for wheel in fitting_wheels(folder, name, version):
        fault = fault_of(wheel)
        if fault is None:
            return wheel
        print(f'mmcv: {wheel} is of no use here: {fault}', flush=True)
    return None


def from_wheelhouse(folder: Path, name: str, version: str) -> Path | None:
    """A working wheel from the user's folder.

    Raises:
        SetupError: If there is no such folder.
    """
    if not folder.is_dir():
        raise SetupError(
            f'MEGDET_WHEELHOUSE={folder} is not a folder. Correct or unset it.'
        )
    wheel = first_working(folder, name, version)
    if wheel is None:
        held = ', '.join(sorted(p.name for p in folder.glob('mmcv*.whl')))
        print(
            f'mmcv: MEGDET_WHEELHOUSE={folder} has no working wheel of '
            f'{name} {version} for this Python and torch (it holds '
            f'{held or "no mmcv wheel"}); going on to the cache or a build',
            flush=True,
        )
    return wheel


def built(requirement: Requirement, cache: Path, archs: str | None) -> Path:
    """Build a wheel and put it into the cache, if its ops work."""
    # By the cache's key, lest an interrupted build go on with another torch.
    folder = BUILD / cache.name
    wheel = build(str(requirement), folder, LOG, archs)
    fault = fault_of(wheel)
    if fault is not None:
        raise SetupError(
            f'mmcv was built, but it does not work: {fault}\n'
            f'The whole log: {LOG}'
        )
    try:
        wheel = keep(wheel, cache)
    except OSError as error:
        print(f'mmcv: the wheel is not kept for other clones: {error}')
    return wheel


def main() -> None:
    requirement = pinned(ROOT / 'requirements' / 'mmcv.txt')
    name = requirement.name
    version = str(requirement.specifier).removeprefix('==')
    torch = torch_version(VENV)
    if gpu_visible() and torch.cuda is None:
        if os.environ.get('FORCE_CUDA') == '1':
            raise SetupError(
                f'FORCE_CUDA=1 asks for CUDA ops, but torch {torch.version} '
                'is a build without CUDA. Unset it, or set up with a CUDA '
                'build of torch.'
            )
        print(
            f'mmcv: there is a GPU, but torch {torch.version} is a build '
            'without CUDA: ops for the CPU only',
            flush=True,
        )
    wheel = None
    wheelhouse = os.environ.get('MEGDET_WHEELHOUSE')
    if wheelhouse:
        wheel = from_wheelhouse(Path(wheelhouse).expanduser(), name, version)
    if wheel is None:
        archs = arch_list() if gpu_wanted(VENV) else None
        flavour = f'cu{torch.cuda}-{archs}' if archs else 'cpu'
        cache = cache_folder(torch.version, flavour)
        wheel = first_working(cache, name, version)
    if wheel is None:
        if archs:
            check_nvcc(find_nvcc(), torch.cuda)
        wheel = built(requirement, cache, archs)
    print(f'mmcv: installing {wheel}', flush=True)
    pip = [sys.executable, '-m', 'pip', 'install', '-q', '--no-compile']
    options = ['--no-deps', '--force-reinstall']
    if subprocess.run([*pip, *options, wheel]).returncode:
        raise SetupError(f'pip could not install {wheel}')
    fault = fault_of_mmcv()
    if fault is not None:
        raise SetupError(f'mmcv is installed, but does not work: {fault}')
    shutil.rmtree(BUILD, ignore_errors=True)


if __name__ == '__main__':
    main_with_errors(main)
