# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Are the packages there, do they fit each other, do they work?"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .report import Finding, broken, failure, passed, reason, warning

# Ranges of the extra openmmlab. (mmdet's own limits follow from its
# import, which raises.)
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
_PACKAGES = (
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
SET_UP = 'make setup installs versions that fit each other.'
_REMEDIES = {
    'torchvision': 'Install the one that belongs to this torch (pip install '
    'torchvision --no-deps at the version that its release notes pair with '
    'it), or remove it: only torchvision:// weights need it.',
    'setuptools': "pip install 'setuptools<81': mmengine and mmcv import "
    'pkg_resources, which setuptools 82 no longer has.',
    'mmcv': 'Build it for this torch, as make setup does. pip alone builds '
    'mmcv without ops where torch was not there first.',
    'mmdet_megdet': 'See the failures above: it builds on them.',
}
_OPS = Path(__file__).resolve().parents[1] / 'setup' / 'check_mmcv.py'


def check_packages() -> Iterator[Finding]:
    """Check whether Python and each package are there, fit and work."""
    yield _python()
    works = {
        'torch': _torch_works,
        'setuptools': _has_pkg_resources,
        'mmcv': _ops_work,
    }
    for name in _PACKAGES:
        try:
            yield _import(name)
            if name in works and name in sys.modules:
                yield from works[name]()
        except Exception as error:
            yield broken(name, error)


def installed(name: str) -> str | None:
    """Return the version of an installed package by its metadata."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    version = platform.python_version()
    text = f'{version}, {sys.executable}'
    if not _contains(_PYTHON, version):
        return failure('python', f'{text} is not {_PYTHON}', SET_UP)
    return passed('python', text)


def _import(name: str) -> Finding:
    """Import a package and hold its version against the range."""
    remedy = _REMEDIES.get(name, SET_UP)
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
    if name == 'torch':
        cuda = module.version.cuda
        version += f', built for {f"CUDA {cuda}" if cuda else "the CPU"}'
    elif name == 'mmdet_megdet':
        version += f', {Path(module.__file__).parent}'
    return passed(name, version)


def _contains(wanted: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet

    # prereleases: 2.6.0a0+git is how builds from source call themselves.
    return SpecifierSet(wanted).contains(version, prereleases=True)


def _torch_works() -> Iterator[Finding]:
    try:
        sys.modules['torch'].ones(2).numpy()
    except RuntimeError as error:
        yield failure(
            'numpy',
            f'torch cannot use it: {reason(error)}',
            f'torch was compiled for another major version of numpy. {SET_UP}',
        )


def _has_pkg_resources() -> Iterator[Finding]:
    if importlib.util.find_spec('pkg_resources') is None:
        yield failure(
            'setuptools',
            'there is no pkg_resources',
            _REMEDIES['setuptools'],
        )


def _ops_work() -> Iterator[Finding]:
    # In a process of its own: ops that were built for another torch may end
    # it.
    done = subprocess.run(
        [sys.executable, _OPS], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        text = said[-1] if said else f'ended with status {done.returncode}'
        if done.returncode < 0:
            text = f'the process was ended by signal {-done.returncode}'
        yield failure('mmcv ops', f'do not work: {text}', _REMEDIES['mmcv'])
        return
    from mmcv.ops import get_compiler_version, get_compiling_cuda_version

    torch, cuda = sys.modules['torch'], get_compiling_cuda_version()
    yield passed('mmcv ops', f'work; {get_compiler_version()}, CUDA {cuda}')
    if torch.cuda.is_available() and cuda != torch.version.cuda:
        yield warning(
            'mmcv ops',
            f'compiled with CUDA {cuda}, torch with {torch.version.cuda}',
            _REMEDIES['mmcv'],
        )
