# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Sets the repository up in ``.venv``: the pinned packages, then mmcv.

Standard library only: it runs before anything is installed. Each step leaves
a stamp when it has succeeded, so an interrupted set-up continues where it
stopped, a finished one returns at once, and a changed requirement file runs
its step and those that build on it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from errors import SetupError, main_with_errors
from flavour import gpu_wanted

ROOT = Path(__file__).resolve().parents[2]
SETUP = Path(__file__).resolve().parent
VENV = ROOT / '.venv'
STAMPS = VENV / '.setup'
PYTHON = VENV / 'bin' / 'python'
REQUIREMENTS = ROOT / 'requirements'


def digest(*parts: Path | str) -> str:
    """A key that changes with the content of files or with strings."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        sha.update(b'%d:' % len(data) + data)
    return sha.hexdigest()


class Stamps:
    """Remembers which steps have succeeded, and for which key.

    Args:
        folder (Path): Where the stamps lie, a file for each step.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def done(self, step: str, key: str) -> bool:
        """Whether ``step`` has succeeded for this very key."""
        path = self.folder / step
        return path.is_file() and path.read_text() == key

    def start(self, step: str) -> None:
        """Forget the step: it counts as undone until :meth:`finish`."""
        (self.folder / step).unlink(missing_ok=True)

    def finish(self, step: str, key: str) -> None:
        """Write the stamp, whole or not at all."""
        part = self.folder / f'{step}.part'
        part.write_text(key)
        part.replace(self.folder / step)


def run(*command: object, step: str) -> None:
    """Run a command in a clean Python environment or stop the set-up."""
    env = {
        name: value
        for name, value in os.environ.items()
        # They would mix foreign packages into the venv.
        if name not in ('PYTHONPATH', 'PYTHONHOME', '__PYVENV_LAUNCHER__')
    }
    env.update(PIP_USER='0', PIP_DISABLE_PIP_VERSION_CHECK='1')
    words = [str(word) for word in command]
    code = subprocess.run(words, env=env, cwd=ROOT).returncode
    if code:
        raise SetupError(
            f'the step "{step}" failed (exit status {code} of '
            f'`{" ".join(words)}`); its own message stands above. '
            'Run the same make command again to continue from this step.'
        )


def pip_install(*arguments: object, step: str) -> None:
    # Modules are compiled when they are first imported: compiling all of
    # them here takes longer than installing them.
    pip = (PYTHON, '-m', 'pip', 'install', '--no-compile')
    run(*pip, *arguments, step=step)


def make_venv() -> None:
    if VENV.exists():
        if not STAMPS.is_dir():
            raise SetupError(
                f'{VENV} exists but was not made by this set-up, which would '
                'have to replace it. Move it away or remove it.'
            )
        shutil.rmtree(VENV)
    STAMPS.mkdir(parents=True)
    # Not sys.executable: that may be the old venv's, removed just now.
    base = getattr(sys, '_base_executable', sys.executable)
    try:
        run(base, '-m', 'venv', VENV, step='venv')
    except SetupError as error:
        version = '{}.{}'.format(*sys.version_info)
        raise SetupError(
            f'{error} If the venv module or ensurepip is missing, install '
            f'it (on Debian and Ubuntu: python{version}-venv).'
        ) from None


def install_torch() -> None:
    pip_install('-r', REQUIREMENTS / 'torch.txt', step='torch')


def install_lock() -> None:
    lock = REQUIREMENTS / 'lock.txt'
    pip_install('-q', '--no-deps', '-r', lock, step='packages')


def install_mmcv() -> None:
    run(PYTHON, SETUP / 'install_mmcv.py', step='mmcv')


def install_project() -> None:
    options = ('--no-deps', '--no-build-isolation', '-q')
    pip_install(*options, '-e', ROOT, step='project')


def steps() -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield each step's name, key and work, in order.

    A generator, since a key may depend on what the steps before it installed.
    """
    version = '{}.{}'.format(*sys.version_info)
    # With the path: a venv that was moved or copied still points back.
    venv = digest(version, str(VENV))
    if not PYTHON.exists():
        # A dangling link: the Python that it was made from has gone.
        Stamps(STAMPS).start('venv')
    yield 'venv', venv, make_venv
    lock = REQUIREMENTS / 'lock.txt'
    files = ('torch.txt', 'cuda.txt', 'lock.txt')
    torch = digest(venv, *(REQUIREMENTS / name for name in files))
    yield 'torch', torch, install_torch
    yield 'packages', digest(torch, lock), install_lock
    # Only what its ops are compiled against: another matplotlib must not
    # cost a build. CUDA ops serve on a machine without a GPU as well.
    pins = (REQUIREMENTS / 'torch.txt', REQUIREMENTS / 'mmcv.txt')
    with_cuda = digest(venv, *pins, 'cuda')
    mmcv = with_cuda
    if not gpu_wanted(VENV) and not Stamps(STAMPS).done('mmcv', with_cuda):
        mmcv = digest(venv, *pins, 'cpu')
    yield 'mmcv', mmcv, install_mmcv
    files = ('setup.py', 'pyproject.toml', 'mmdet_megdet/version.py')
    project = digest(venv, *(ROOT / name for name in files))
    yield 'project', project, install_project


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the tree's lock, waiting for another set-up to finish."""
    with path.open('w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                'set-up: waiting for another set-up of this tree', flush=True
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            print(f'set-up: going on without a lock ({error})', flush=True)
        yield


def main() -> None:
    stamps = Stamps(STAMPS)
    began = time.monotonic()
    worked = False
    for step, key, work in steps():
        if stamps.done(step, key):
            continue
        worked = True
        print(f'set-up: {step} ...', flush=True)
        stamps.start(step)
        start = time.monotonic()
        work()
        stamps.finish(step, key)
        print(f'set-up: {step}: {time.monotonic() - start:.0f} s', flush=True)
    if worked:
        print(f'set-up: complete in {time.monotonic() - began:.0f} s')
    else:
        print('set-up: complete already')


if __name__ == '__main__':
    with one_at_a_time(ROOT / '.venv.lock'):
        main_with_errors(main)
