# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Builds the distributions as for a release and installs them elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

from tests.tools.command import ROOT, environment

# Unlike any that was ever released: it cannot come from another installation.
VERSION = '9.8.7'


def unwanted(folder: str, names: list[str]) -> set[str]:
    """What lies in a working tree without being part of the project."""
    skipped = {n for n in names if n.startswith('.') or n == '__pycache__'}
    if Path(folder) == ROOT:
        ignored = {'build', 'dist', 'data', 'work_dirs'}
        skipped |= {
            n for n in names if n in ignored or n.endswith('.egg-info')
        }
    return skipped


def copy_source(folder: Path) -> Path:
    """Copies the project, with another version in the one place for it."""
    source = Path(shutil.copytree(ROOT, folder, ignore=unwanted))
    (source / 'mmdet_megdet' / 'version.py').write_text(
        f'__version__ = {VERSION!r}\n'
    )
    return source


def build(source: Path, kind: str, out: Path) -> Path:
    """Builds an 'sdist' or a 'wheel' by the installed setuptools, offline."""
    out.mkdir(exist_ok=True)
    script = (
        'import sys; from setuptools import build_meta; '
        f'open(sys.argv[2], "w").write(build_meta.build_{kind}(sys.argv[1]))'
    )
    name = out / f'{kind}.name'
    check(sys.executable, '-c', script, out, name, cwd=source)
    return out / name.read_text()


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpacks an sdist; returns the one folder that it holds."""
    with tarfile.open(sdist) as tar:
        tar.extractall(folder)
    (source,) = folder.iterdir()
    return source


def make_environment(folder: Path) -> Path:
    """Makes an environment that has all but this package.

    The rest is the tests' own interpreter's, whose ``.pth`` files are not
    read: an editable installation of this package there is not found here.
    """
    venv.create(folder, symlinks=True)
    python = folder / 'bin' / 'python'
    names = ('purelib', 'platlib')
    add_packages(python, 'others', *map(sysconfig.get_path, names))
    return python


def add_packages(python: Path, name: str, *folders: Path | str) -> None:
    """Lets an environment import from more folders, after its own."""
    (packages,) = python.parents[1].glob('lib/python*/site-packages')
    lines = dict.fromkeys(map(str, folders))  # purelib may be platlib
    (packages / f'{name}.pth').write_text('\n'.join(lines) + '\n')


def pip_install(python: Path, *arguments: str | Path) -> None:
    """Installs into an environment from files alone."""
    options = ['--no-deps', '--no-index', '--no-build-isolation']
    check(python, '-m', 'pip', 'install', *options, *arguments)


def check(*command: str | Path, cwd: Path | None = None, **variables) -> str:
    """Runs a command without the repository; returns what it printed."""
    env = environment(**variables)
    del env['PYTHONPATH']  # nothing from the repository
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
