# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set the repository up in ``.venv``: pinned packages, torch, mmcv, itself.

Standard library only: it runs before anything is installed. What is complete
for the same files, Python and torch returns at once; pip skips what is there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / '.venv'
PYTHON = VENV / 'bin' / 'python'
# Notes of how the venv was made, and of the torch in it and what is complete.
STAMPS = VENV / '.setup'
REQUIREMENTS = ROOT / 'requirements'
# What the environment follows from.
INPUTS = (
    'requirements/lock.txt',
    'requirements/torch.txt',
    'requirements/cuda.txt',
    'requirements/mmcv.txt',
    'pyproject.toml',
    'setup.py',
    'mmdet_megdet/version.py',
)


def digest(*parts: Path | str) -> str:
    """Return a key that changes with the files' content or the strings."""
    contents = [p.read_bytes() if isinstance(p, Path) else p for p in parts]
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def stamp(name: str) -> str:
    """Return what was noted in .venv under this name, or nothing."""
    path = STAMPS / name
    return path.read_text() if path.is_file() else ''


def run(step: str, *command: Path | str) -> None:
    """Run one step's command, or end the set-up with what it said."""
    # The user's other packages must not mix into the venv.
    foreign = ('PYTHONPATH', 'PYTHONHOME', '__PYVENV_LAUNCHER__')
    env = {k: v for k, v in os.environ.items() if k not in foreign}
    env.update(PIP_USER='0', PIP_DISABLE_PIP_VERSION_CHECK='1')
    print(f'set-up: {step} ...', flush=True)
    words = [str(word) for word in command]
    code = subprocess.run(words, env=env, cwd=ROOT).returncode
    if code:
        sys.exit(
            f'set-up: the step "{step}" failed (exit status {code} of '
            f'`{" ".join(words)}`); its own message stands above. '
            'Run the same make command again to continue.'
        )


def pip_install(step: str, *arguments: Path | str) -> None:
    """Install; modules are compiled when first imported, which is faster."""
    run(step, PYTHON, '-m', 'pip', 'install', '--no-compile', *arguments)


def make_venv(key: str) -> None:
    """Make .venv anew, unless the one that is there has this key."""
    if PYTHON.exists() and stamp('venv') == key:
        return
    if VENV.exists() and not STAMPS.is_dir():
        sys.exit(
            f'set-up: {VENV} exists but was not made by this set-up, which '
            'would have to replace it. Move it away or remove it.'
        )
    shutil.rmtree(VENV, ignore_errors=True)
    # Not sys.executable: that may be the old .venv's, removed just now.
    base = getattr(sys, '_base_executable', sys.executable)
    run('venv', base, '-m', 'venv', VENV)
    STAMPS.mkdir()
    (STAMPS / 'venv').write_text(key)


def install(torch: str) -> None:
    """Install everything; ``torch`` is a version, or empty for the pinned."""
    lock = REQUIREMENTS / 'lock.txt'
    pip_install('packages', '-q', '--no-deps', '-r', lock)
    pinned = REQUIREMENTS / 'torch.txt'
    if not torch or f'torch=={torch}' in pinned.read_text().split():
        pip_install('torch', '-r', pinned)
    else:
        # pip exchanges locked packages for those that this torch needs.
        pip_install('torch', f'torch=={torch}', 'setuptools<81')
    run('mmcv', PYTHON, Path(__file__).with_name('install_mmcv.py'))
    options = ('-q', '--no-deps', '--no-build-isolation')
    pip_install('project', *options, '-e', ROOT)


def main() -> None:
    """Set up whatever is not as the files, TORCH and this Python say."""
    # With the path: a venv that was moved still points to where it was.
    venv = digest('{}.{}'.format(*sys.version_info), str(VENV))
    make_venv(venv)
    # The choice of a torch holds until another is made.
    torch = os.environ.get('TORCH') or stamp('torch-version')
    key = digest(venv, torch, *(ROOT / name for name in INPUTS))
    if stamp('done') == key:
        print('set-up: complete already')
        return
    (STAMPS / 'done').unlink(missing_ok=True)
    install(torch)
    (STAMPS / 'torch-version').write_text(torch)
    (STAMPS / 'done').write_text(key)
    print('set-up: complete')


if __name__ == '__main__':
    main()
