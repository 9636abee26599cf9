# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Finding an mmcv wheel that fits, and telling whether it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

CHECK = Path(__file__).resolve().parent / 'check_mmcv.py'


def cache_folder(
    torch: str, flavour: str, env: Mapping[str, str] = os.environ
) -> Path:
    """Where the wheels for this Python, torch and CUDA are kept.

    Args:
        torch (str): torch's version with its local part, '2.13.0+cpu'.
        flavour (str): 'cpu', or CUDA version and compute capabilities.
        env (Mapping): MEGDET_WHEEL_CACHE, or else XDG_CACHE_HOME, moves it.
    """
    root = env.get('MEGDET_WHEEL_CACHE')
    if not root:
        caches = env.get('XDG_CACHE_HOME') or Path.home() / '.cache'
        root = Path(caches) / 'mmdet_megdet' / 'wheels'
    python = 'cp{}{}'.format(*sys.version_info)
    return Path(root) / f'{python}-torch{torch}-{flavour}'


def fitting_wheels(
    folder: Path,
    name: str,
    version: str,
    tags: Iterable[Tag] | None = None,
) -> list[Path]:
    """The wheels in a folder that pip would take here, the best first.

    A local version ('2.1.0+cu130') counts as the version itself.
    """
    rank = {tag: i for i, tag in enumerate(tags or sys_tags())}
    found = []
    for path in sorted(folder.glob('*.whl')):
        try:
            its_name, its_version, _, its_tags = parse_wheel_filename(
                path.name
            )
        except InvalidWheelFilename:
            continue
        ranks = [rank[tag] for tag in its_tags if tag in rank]
        if its_name == name and its_version.public == version and ranks:
            found.append((min(ranks), path))
    return [path for _, path in sorted(found)]


def fault_of(wheel: Path) -> str | None:
    """Try the wheel's ops without installing it.

    Returns:
        str | None: What is wrong with it; None if its ops work.
    """
    with tempfile.TemporaryDirectory(prefix='mmcv-check-') as folder:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        except (OSError, zipfile.BadZipFile) as error:
            return f'it cannot be unpacked: {error}'
        return fault_of_mmcv(folder)


def fault_of_mmcv(folder: str | None = None) -> str | None:
    """The same for the installed mmcv, or for one unpacked in a folder."""
    where = [folder] if folder else []
    checked = subprocess.run(
        [sys.executable, '-I', CHECK, *where], capture_output=True, text=True
    )
    if checked.returncode == 0:
        return None
    lines = checked.stderr.strip().splitlines()
    return lines[-1] if lines else f'exit status {checked.returncode}'


def keep(wheel: Path, folder: Path) -> Path:
    """Put a wheel into the cache, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f'{wheel.name}.{os.getpid()}.part'
    try:
        shutil.copyfile(wheel, part)
        return part.replace(folder / wheel.name)
    finally:
        part.unlink(missing_ok=True)
