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
import tempfile
from collections.abc import Mapping
from pathlib import Path

SETUP = Path(__file__).resolve().parent
REQUIREMENT = (SETUP.parents[1] / 'requirements' / 'mmcv.txt').read_text()
VERSION = REQUIREMENT.split('mmcv==')[1].strip()
VENV = Path(sys.prefix)
LOG = VENV / 'mmcv-build.log'
PIP = (sys.executable, '-m', 'pip')


def install_working(wheel: Path) -> bool:
    """Install a wheel; say why where it does not fit or does not work."""
    options = ('-q', '--no-compile', '--no-deps', '--force-reinstall')
    fault = 'pip cannot install it here'
    if subprocess.run([*PIP, 'install', *options, wheel]).returncode == 0:
        check = [sys.executable, '-I', SETUP / 'check_mmcv.py']
        done = subprocess.run(check, capture_output=True, text=True)
        said = done.stderr.strip() or f'exit status {done.returncode}'
        fault = said.splitlines()[-1] if done.returncode else ''
    print(f'mmcv: {wheel}: {fault or "works"}', flush=True)
    return not fault


def install_from(folder: Path) -> bool:
    """Install the folder's first wheel whose ops work."""
    # A local version, 2.1.0+cu130, counts as the version itself.
    wheels = sorted(folder.expanduser().glob(f'mmcv-{VERSION}[-+]*.whl'))
    return any(map(install_working, wheels))


def cache_folder(torch: str, flavour: str) -> Path:
    """Return where wheels for this Python, torch and 'cpu' or CUDA are."""
    root = os.environ.get('MEGDET_WHEEL_CACHE')
    if not root:
        caches = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
        root = Path(caches) / 'mmdet_megdet' / 'wheels'
    python = 'cp{}{}'.format(*sys.version_info)
    return Path(root) / f'{python}-torch{torch}-{flavour}'


def find_compiler() -> str:
    """Return the C++ compiler's command: CXX, or the first that is there."""
    usual = filter(shutil.which, ('g++', 'c++', 'clang++'))
    command = os.environ.get('CXX') or next(usual, '')
    if not command or shutil.which(shlex.split(command)[0]) is None:
        sys.exit(
            f'set-up: no C++ compiler to build mmcv with (CXX={command}). '
            'Install one (on Debian and Ubuntu: g++), or point '
            'MEGDET_WHEELHOUSE to a folder with an mmcv wheel that fits.'
        )
    return command


def build_environment(
    compiler: str, folder: Path, cuda: bool, torch: str
) -> dict[str, str]:
    """Return the environment to build in, by the compiler wrapper."""
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
        'FORCE_CUDA': '1' if cuda else '0',
        'LC_ALL': 'C',
    }
    # mmcv asks for C++17, in which the headers of torch 2.15 do not compile.
    if tuple(map(int, torch.split('.')[:2])) > (2, 13):
        env['MEGDET_CXX_STD'] = 'c++20'
    return env


def compile_wheel(out: Path, env: Mapping[str, str]) -> Path:
    """Have pip build the wheel from the sdist."""
    # pip's cache would hand out a wheel that was built for another torch.
    options = ('--no-deps', '--no-build-isolation', '--no-cache-dir', '-v')
    command = [*PIP, 'wheel', *options, '--no-binary', ':all:', '-w', out]
    print(f'mmcv: compiling, which takes minutes; log: {LOG}', flush=True)
    with LOG.open('w') as log:
        code = subprocess.run(
            [*command, f'mmcv=={VERSION}'],
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
        ).returncode
    if code:
        errors = re.findall(r'.*[Ee]rror: .*', LOG.read_text(errors='replace'))
        sys.exit(
            'set-up: mmcv could not be built.\n'
            + '\n'.join(errors[:3])
            + f'\nThe whole log: {LOG}\nShort of memory: MAX_JOBS=1. Without '
            "a CUDA toolkit of torch's major version: CUDA_VISIBLE_DEVICES= "
            'for CPU ops, or MEGDET_WHEELHOUSE with a wheel that fits.'
        )
    (wheel,) = out.glob('mmcv-*.whl')
    return wheel


def build(cache: Path, cuda: bool, torch: str) -> None:
    """Build and install a wheel, and keep it if its ops work."""
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(dir=VENV) as name:
        env = build_environment(compiler, Path(name), cuda, torch)
        wheel = compile_wheel(Path(name, 'dist'), env)
        if not install_working(wheel):
            sys.exit(f'set-up: mmcv was built, but does not work; see {LOG}')
        cache.mkdir(parents=True, exist_ok=True)
        # Whole or not at all.
        part = shutil.copy(wheel, cache / f'{wheel.name}.{os.getpid()}.part')
        part.replace(cache / wheel.name)


def main() -> None:
    """Try the user's folder, the cache and a build, in this order."""
    import torch

    cuda = torch.cuda.is_available() or os.environ.get('FORCE_CUDA') == '1'
    archs = os.environ.get('TORCH_CUDA_ARCH_LIST', '')
    cache = cache_folder(torch.__version__, f'cuda{archs}' if cuda else 'cpu')
    wheelhouse = os.environ.get('MEGDET_WHEELHOUSE')
    if wheelhouse and install_from(Path(wheelhouse)):
        return
    if not install_from(cache):
        build(cache, cuda, torch.__version__)


if __name__ == '__main__':
    main()
