# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Are the packages there, do they fit each other, do they work?"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .report import Finding, failure, passed, reason

# Of the extra openmmlab. (mmdet's own limits follow from its import, which
# raises.)
RANGES = {
    'torch': '>=2.6',
    'mmengine': '>=0.10.7,<1',
    'mmcv': '>=2.1.0,<2.2.0',
    'mmdet': '>=3.3.0,<4',
    'setuptools': '<81',
}
# With the maintained forks, onedl-<name>, that docs/installation.md speaks of:
# where their numbers have left those of the libraries behind.
FORK_RANGES = {'mmcv': '>=2.3.6,<2.4'}
_PYTHON = '>=3.10,<3.13'
# In the order in which they build on each other. Without pycocotools mmdet
# imports, and no COCO data set does.
PACKAGES = (
    'numpy',
    'torch',
    'torchvision',
    'setuptools',
    'mmengine',
    'mmcv',
    'mmdet',
    'pycocotools',
    'mmdet_megdet',
)
_SET_UP = 'make setup installs versions that fit each other.'
_REMEDIES = {
    'torchvision': 'Install the one that belongs to this torch, or remove it: '
    'only torchvision:// weights need it.',
    'setuptools': "pip install 'setuptools<81': mmengine and mmcv import "
    'pkg_resources, which setuptools 82 no longer has.',
    'mmcv': 'Build it for this torch, as make clean setup does. pip alone '
    'builds mmcv without ops where torch was not there first.',
    'mmdet_megdet': 'See the failures above: it builds on them.',
}
_OPS = Path(__file__).resolve().parents[1] / 'setup' / 'check_mmcv.py'


def check_python() -> Iterator[Finding]:
    """Check the version of this interpreter."""
    version = platform.python_version()
    text = f'{version}, {sys.executable}'
    if _contains(_PYTHON, version):
        yield passed('python', text)
    else:
        yield failure('python', f'{text} is not {_PYTHON}', _SET_UP)


def check_package(name: str) -> Iterator[Finding]:
    """Check whether a package is there, fits and works."""
    yield import_package(name)
    if name == 'mmcv' and name in sys.modules:
        yield _ops_work()


def installed(name: str) -> str | None:
    """Return the version of an installed package by its metadata."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def import_package(name: str) -> Finding:
    """Import a package and hold its version against the range."""
    remedy = _REMEDIES.get(name, _SET_UP)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        if missing and name == 'torchvision':
            text = 'not installed: only torchvision:// weights need it'
            return passed(name, text)
        text = 'not installed' if missing else f'import: {reason(error)}'
        return failure(name, text, remedy)
    version = getattr(module, '__version__', None) or installed(name)
    wanted = RANGES.get(name)
    if installed(f'onedl-{name}'):
        wanted = FORK_RANGES.get(name, wanted)
    if wanted is not None and not _contains(wanted, version):
        return failure(name, f'{version} is not {wanted}', remedy)
    return passed(name, f'{version}, {Path(module.__file__).parent}')


def _contains(wanted: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet

    # prereleases: 2.6.0a0+git is how builds from source call themselves.
    return SpecifierSet(wanted).contains(version, prereleases=True)


def _ops_work() -> Finding:
    # In a process of its own: ops that were built for another torch may end
    # it.
    done = subprocess.run(
        [sys.executable, _OPS], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return passed('mmcv ops', 'work')
    said = done.stderr.strip() or f'ended with status {done.returncode}'
    text = f'do not work: {said.splitlines()[-1]}'
    return failure('mmcv ops', text, _REMEDIES['mmcv'])
