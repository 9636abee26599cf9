# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Install mmcv with working ops into the venv that runs this.

The wheel comes from the folder MEGDET_WHEELHOUSE, else from the cache, else
from a build. Whatever its source, its ops are called: a build without ops
passes nowhere, and is not cached.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from install import REQUIREMENTS, gpu_visible

VENV = Path(sys.prefix)
SETUP = Path(__file__).resolve().parent
LOG = VENV / 'mmcv-build.log'
PIP = (sys.executable, '-m', 'pip')


def fail(text: str) -> NoReturn:
    """End the set-up with what the user can mend."""
    sys.exit(f'set-up: {text}')


def fault_of_mmcv() -> str | None:
    """Return what is wrong with the installed mmcv; None if its ops work."""
    check = [sys.executable, '-I', SETUP / 'check_mmcv.py']
    done = subprocess.run(check, capture_output=True, text=True)
    said = done.stderr.strip() or f'exit status {done.returncode}'
    return said.splitlines()[-1] if done.returncode else None


def install_working(wheel: Path) -> bool:
    """Install a wheel; say why where it does not fit or does not work."""
    options = ('-q', '--no-compile', '--no-deps', '--force-reinstall')
    if subprocess.run([*PIP, 'install', *options, wheel]).returncode:
        fault = 'pip cannot install it here'
    else:
        fault = fault_of_mmcv()
    print(f'mmcv: {wheel}: {fault or "works"}', flush=True)
    return fault is None


def install_from(folder: Path, version: str) -> bool:
    """Install the folder's first wheel of that version whose ops work."""
    # A local version, 2.1.0+cu130, counts as the version itself.
    wheels = sorted(folder.glob(f'mmcv-{version}[-+]*.whl'))
    return any(map(install_working, wheels))


def cache_folder(
    torch: str, flavour: str, env: Mapping[str, str] = os.environ
) -> Path:
    """Return where wheels for this Python, torch and 'cpu' or CUDA are."""
    root = env.get('MEGDET_WHEEL_CACHE')
    if not root:
        caches = env.get('XDG_CACHE_HOME') or Path.home() / '.cache'
        root = Path(caches) / 'mmdet_megdet' / 'wheels'
    python = 'cp{}{}'.format(*sys.version_info)
    return Path(root) / f'{python}-torch{torch}-{flavour}'


def keep(wheel: Path, folder: Path) -> None:
    """Put a wheel into the cache, whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f'{wheel.name}.{os.getpid()}.part'
        shutil.copyfile(wheel, part)
        part.replace(folder / wheel.name)
    except OSError as error:
        print(f'mmcv: the wheel is not kept for other clones: {error}')


def find_compiler(env: Mapping[str, str] = os.environ) -> str:
    """Return the C++ compiler's command: CXX, or the first that is there."""
    usual = filter(shutil.which, ('g++', 'c++', 'clang++'))
    command = env.get('CXX') or next(usual, '')
    if not command or shutil.which(shlex.split(command)[0]) is None:
        fail(
            f'no C++ compiler to build mmcv with (CXX={command}). Install one '
            '(on Debian and Ubuntu: g++), or point MEGDET_WHEELHOUSE to a '
            'folder with an mmcv wheel that fits.'
        )
    headers = Path(sysconfig.get_path('include'))
    if not (headers / 'Python.h').is_file():
        fail(
            f'no Python.h in {headers} to build mmcv with. Install it (on '
            'Debian and Ubuntu: python{}.{}-dev).'.format(*sys.version_info)
        )
    return command


def arch_list(env: Mapping[str, str] = os.environ) -> str:
    """Return the compute capabilities to compile for, e.g. '8.0;9.0'."""
    if env.get('TORCH_CUDA_ARCH_LIST'):
        return env['TORCH_CUDA_ARCH_LIST']
    from torch import cuda

    if not cuda.is_available():
        fail(
            'FORCE_CUDA=1, but torch sees no GPU whose compute capability '
            'could be taken. Give it: TORCH_CUDA_ARCH_LIST=9.0'
        )
    devices = range(cuda.device_count())
    found = sorted({cuda.get_device_capability(i) for i in devices})
    return ';'.join(f'{major}.{minor}' for major, minor in found)


def build_environment(
    compiler: str, folder: Path, archs: str, torch: str
) -> dict[str, str]:
    """Return the environment for mmcv's ``setup.py``.

    Args:
        compiler (str): The C++ compiler's command.
        folder (Path): Existing; takes the compiler wrapper and its header.
        archs (str): Compute capabilities for CUDA ops, or empty.
        torch (str): torch's version.
    """
    launcher = folder / 'cxx'
    # torch asks its compiler for one word; the wrapper has two.
    wrapper = str(SETUP / 'cxx_precompiled.py')
    words = shlex.join([sys.executable, '-I', '-S', wrapper])
    launcher.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    launcher.chmod(0o755)
    env = {
        'MAX_JOBS': str(len(os.sched_getaffinity(0))),
        **os.environ,
        'PATH': f'{VENV / "bin"}{os.pathsep}{os.environ["PATH"]}',  # ninja
        'CXX': str(launcher),
        'MEGDET_CXX': compiler,
        'MEGDET_CXX_DIR': str(folder),
        'MMCV_WITH_OPS': '1',
        'FORCE_CUDA': '1' if archs else '0',
        'LC_ALL': 'C',
    }
    if archs:
        env['TORCH_CUDA_ARCH_LIST'] = archs
    # mmcv asks for C++17, in which the headers of torch 2.15 do not compile.
    if tuple(map(int, torch.split('.')[:2])) > (2, 13):
        env['MEGDET_CXX_STD'] = 'c++20'
    return env


def first_error(log: str) -> str:
    """Return a build's first error with the lines after it, or the end."""
    said = log.partition('error: subprocess-exited')[0]  # pip's own
    lines = [line for line in said.splitlines() if line.strip()]
    signs = re.compile(r'[Ee]rror:( |$)|Killed signal|undefined reference')
    errors = [i for i, line in enumerate(lines) if signs.search(line)]
    first = errors[0] if errors else -4
    return '\n'.join(lines[first:][:4])


def compile_wheel(requirement: str, out: Path, env: Mapping[str, str]) -> Path:
    """Have pip build the wheel from the sdist, saying how far it is."""
    # pip's cache would hand out a wheel that was built for another torch.
    options = ('--no-deps', '--no-build-isolation', '--no-cache-dir')
    options += ('-v', '--no-binary', ':all:', '-w', out)
    print(f"compiling mmcv: torch's headers first; log: {LOG}", flush=True)
    said = time.monotonic()
    with (
        LOG.open('w') as log,
        subprocess.Popen(
            [*PIP, 'wheel', *options, requirement],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
        ) as process,
    ):
        for line in process.stdout:
            log.write(line)
            progress = re.match(r'\s*\[(\d+/\d+)\] ', line)  # ninja's
            if progress and time.monotonic() - said > 10:
                said = time.monotonic()
                print(f'compiling mmcv: {progress[1]}', flush=True)
    wheels = list(out.glob('mmcv-*.whl'))
    if process.returncode or len(wheels) != 1:
        error = first_error(LOG.read_text())
        if 'Killed signal' in error:
            error += '\nMemory ran out: try again with MAX_JOBS=1.'
        if env['FORCE_CUDA'] == '1':
            error += (
                "\nCUDA ops need a CUDA toolkit of torch's major version, "
                'with nvcc on PATH or under CUDA_HOME; without one, hide the '
                'GPU (CUDA_VISIBLE_DEVICES= ) for CPU ops, or point '
                'MEGDET_WHEELHOUSE to a folder with an mmcv wheel that fits.'
            )
        fail(f'mmcv could not be built.\n{error}\nThe whole log: {LOG}')
    return wheels[0]


def build(requirement: str, cache: Path, archs: str, torch: str) -> None:
    """Build and install a wheel, and keep it if its ops work."""
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(dir=VENV) as name:
        env = build_environment(compiler, Path(name), archs, torch)
        wheel = compile_wheel(requirement, Path(name, 'dist'), env)
        if not install_working(wheel):
            fail(f'mmcv was built, but does not work. The whole log: {LOG}')
        keep(wheel, cache)


def main() -> None:
    """Try the user's folder, the cache and a build, in this order."""
    import torch

    requirement = (REQUIREMENTS / 'mmcv.txt').read_text().split()[-1]
    version = requirement.removeprefix('mmcv==')
    forced = os.environ.get('FORCE_CUDA') == '1'
    if forced and torch.version.cuda is None:
        fail(
            f'FORCE_CUDA=1, but torch {torch.__version__} is a build without '
            'CUDA. Unset it, or set up with a CUDA build of torch.'
        )
    cuda = forced or torch.cuda.is_available()
    if gpu_visible() and not cuda:
        print(
            f'mmcv: there is a GPU, but torch {torch.__version__} cannot use '
            f'it (built with CUDA: {torch.version.cuda}): ops for the CPU',
            flush=True,
        )
    wheelhouse = os.environ.get('MEGDET_WHEELHOUSE')
    if wheelhouse:
        folder = Path(wheelhouse).expanduser()
        if not folder.is_dir():
            fail(f'MEGDET_WHEELHOUSE={folder} is not a folder.')
        if install_from(folder, version):
            return
        print(f'mmcv: no wheel of mmcv {version} in {folder} works here')
    archs = arch_list() if cuda else ''
    flavour = f'cu{torch.version.cuda}-{archs}' if cuda else 'cpu'
    cache = cache_folder(torch.__version__, flavour)
    if not install_from(cache, version):
        build(requirement, cache, archs, torch.__version__)


if __name__ == '__main__':
    main()
