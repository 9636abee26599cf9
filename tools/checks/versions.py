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
from typing import NamedTuple

from .devices import SET_UP, check_communication, check_gpus
from .report import Finding, broken, failure, passed, reason, warning

# Ranges by which pyproject.toml asks for them. (mmdet's own limits follow from its
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
_PACKAGES = ('numpy', 'torch', 'torchvision', *list(RANGES)[1:])
_OPS = Path(__file__).resolve().parents[1] / 'setup' / 'check_mmcv.py'


def check_versions() -> Iterator[Finding]:
    """All packages, one after another, in the order in which they build on
    each other.
    """
    yield _check_python()
    for check in (
        _check_numpy,
        _check_torch,
        check_gpus,
        check_communication,
        _check_torchvision,
        _check_setuptools,
        _check_mmengine,
        _check_mmcv,
        _check_mmdet,
        _check_own_package,
        _check_requirements,
    ):
        try:
            yield from check()
        except Exception as error:
            yield broken(
                check.__name__.lstrip('_').removeprefix('check_'), error
            )


def installed(name: str) -> str | None:
    """The version of an installed package by its metadata."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _imported(name: str, remedy: str) -> Iterator[Finding]:
    """Import a package and hold its version against the range."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        text = 'not installed' if missing else f'import: {reason(error)}'
        yield failure(name, text, remedy)
        return
    version = getattr(module, '__version__', None) or installed(name)
    wanted = RANGES.get(name)
    if installed(f'onedl-{name}'):
        wanted = FORK_RANGES.get(name, wanted)
    yield _in_range(name, version, wanted, remedy)


def _in_range(
    name: str, version: str | None, wanted: str | None, remedy: str
) -> Finding:
    from packaging.specifiers import SpecifierSet

    if version is None:
        return failure(name, 'not installed', remedy)
    # prereleases: 2.6.0a0+git is how builds from source call themselves.
    if wanted is None or SpecifierSet(wanted).contains(
        version, prereleases=True
    ):
        return passed(name, version)
    return failure(name, f'{version} is not {wanted}', remedy)


def _check_python() -> Finding:
    version = platform.python_version()
    place = f'{version}, {sys.executable}'
    finding = _in_range('python', version, _PYTHON, '')
    if finding.level == 'PASS':
        return passed('python', place)
    return failure(
        'python', f'{place} is not {_PYTHON}', f'{SET_UP}, Python included.'
    )


def _check_numpy() -> Iterator[Finding]:
    yield from _imported('numpy', f'{SET_UP}.')


def _check_torch() -> Iterator[Finding]:
    findings = list(_imported('torch', f'{SET_UP}.'))
    if findings[0].level != 'PASS':
        yield from findings
        return
    import torch

    cuda = torch.version.cuda
    built = f'built for CUDA {cuda}' if cuda else 'built for the CPU'
    yield passed('torch', f'{torch.__version__}, {built}')
    try:
        torch.ones(2).numpy()
    except RuntimeError as error:
        yield failure(
            'numpy',
            f'torch cannot use it: {reason(error)}',
            'torch was compiled for another major version of numpy. '
            f'{SET_UP}.',
        )


def _check_torchvision() -> Iterator[Finding]:
    if importlib.util.find_spec('torchvision') is None:
        yield passed(
            'torchvision',
            'not installed: only torchvision:// weights need it',
        )
        return
    yield from _imported(
        'torchvision',
        'Install the one that belongs to this torch (pip install '
        'torchvision --no-deps at the version that its release notes pair '
        'with it), or remove it: only torchvision:// weights need it.',
    )


def _check_setuptools() -> Iterator[Finding]:
    remedy = (
        "pip install 'setuptools<81': mmengine and mmcv import "
        'pkg_resources, which setuptools 82 no longer has.'
    )
    yield _in_range(
        'setuptools', installed('setuptools'), RANGES['setuptools'], remedy
    )
    if importlib.util.find_spec('pkg_resources') is None:
        yield failure('setuptools', 'there is no pkg_resources', remedy)


def _check_mmengine() -> Iterator[Finding]:
    yield from _imported('mmengine', f'{SET_UP}.')


def _check_mmcv() -> Iterator[Finding]:
    remedy = (
        'Build it for this torch, as make setup does. pip alone builds mmcv '
        'without ops where torch was not there first.'
    )
    findings = list(_imported('mmcv', remedy))
    yield from findings
    if findings[0].text == 'not installed':
        return
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
        yield failure('mmcv ops', f'do not work: {text}', remedy)
        return
    from mmcv.ops import get_compiler_version, get_compiling_cuda_version

    torch, cuda = sys.modules['torch'], get_compiling_cuda_version()
    yield passed('mmcv ops', f'work; {get_compiler_version()}, CUDA {cuda}')
    if torch.cuda.is_available() and cuda != torch.version.cuda:
        yield warning(
            'mmcv ops',
            f'compiled with CUDA {cuda}, torch with {torch.version.cuda}',
            remedy,
        )


def _check_mmdet() -> Iterator[Finding]:
    yield from _imported('mmdet', f'{SET_UP}.')
    # Without it mmdet imports, and no COCO data set does.
    findings = list(_imported('pycocotools', f'{SET_UP}.'))
    yield from (finding for finding in findings if finding.level != 'PASS')


def _check_own_package() -> Iterator[Finding]:
    findings = list(
        _imported('mmdet_megdet', 'See the failures above: it builds on them.')
    )
    if findings[0].level != 'PASS':
        yield from findings
        return
    import mmdet_megdet

    place = Path(mmdet_megdet.__file__).parent
    yield passed('mmdet_megdet', f'{mmdet_megdet.__version__}, {place}')


def _check_requirements() -> Iterator[Finding]:
    """What the installed packages say themselves about each other."""
    conflicts = [
        (name, needed, found)
        for name in _PACKAGES
        if installed(name) is not None
        for needed, found in _unmet(name)
    ]
    for name, needed, found in conflicts:
        yield failure(
            name,
            f'{installed(name)} needs {needed}, installed is {found}',
            f"pip install '{needed}', or another {name}. {SET_UP}.",
        )
    if not conflicts:
        yield passed('requirements', "each package's own are met")


class _Unmet(NamedTuple):
    needed: str
    found: str


def _unmet(name: str) -> Iterator[_Unmet]:
    from packaging.requirements import Requirement

    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not marker.evaluate(dict(extra='')):
            continue
        found = installed(requirement.name)
        if requirement.name in _PACKAGES and found is not None:
            fits = requirement.specifier.contains(found, prereleases=True)
            if not fits:
                yield _Unmet(
                    f'{requirement.name}{requirement.specifier}', found
                )
