# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Checkpoints on disk: whole or not there, and which one to resume from."""

from __future__ import annotations

import logging
import os
import shutil
import zipfile
from pathlib import Path

import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.logging import print_log
from mmengine.runner import find_latest_checkpoint

from .checkpoint import CheckpointError

ATOMIC_BACKEND = 'megdet_atomic'
# Behind the final name, so that a pattern such as *.pth does not meet it.
_UNFINISHED = '.unfinished'


def write_atomically(data: bytes, path: str | Path) -> None:
    """Writes a file that is whole from the moment it has its name.

    It is written beside its place under another name, brought to the disk,
    and renamed, which replaces an earlier file of the name in one step.
    Killed in between, a process leaves the earlier file as it was and one
    that :func:`remove_unfinished` finds.

    Args:
        data (bytes): What to write.
        path (str or Path): Where. Its folder is made.

    Raises:
        CheckpointError: If the disk does not take it; nothing is left then.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise CheckpointError(
            f'cannot write {path} ({len(data)} bytes): {error.strerror}'
            f'{_room(path.parent)}. Earlier checkpoints are as they were. '
            'Make room (one checkpoint more than max_keep_ckpts has to fit, '
            'since the oldest goes when the new one is whole) and continue '
            'with --resume.'
        ) from error


def remove_unfinished(folder: str | Path) -> list[str]:
    """Removes what processes left that were killed while they wrote.

    Args:
        folder (str or Path): Folder of the checkpoints.

    Returns:
        list[str]: The names that the files would have got.
    """
    found = sorted(Path(folder).glob(f'*{_UNFINISHED}'))
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name.removesuffix(_UNFINISHED) for path in found]


@register_backend(ATOMIC_BACKEND)
class AtomicLocalBackend(LocalBackend):
    """MMEngine's file backend for local disks, with writes that are whole.

    Chosen by name: ``backend_args=dict(backend='megdet_atomic')``.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes as :func:`write_atomically` does."""
        write_atomically(obj, filepath)


def is_whole(path: str | Path) -> bool:
    """Whether a file is a checkpoint that was written to its end.

    ``torch.save`` writes a zip archive, whose table of contents comes last.
    Only that is read: bytes that change later are found when it is loaded.
    """
    return Path(path).is_file() and zipfile.is_zipfile(path)


def latest_checkpoint(work_dir: str | Path) -> str | None:
    """Finds where ``--resume`` continues, also in a work folder that moved.

    That is the checkpoint which MMEngine's ``last_checkpoint`` note names.
    Where the note or the checkpoint is missing or damaged, it is the newest
    whole one in the same folder with an optimizer's state, and a warning
    says so.

    Args:
        work_dir (str or Path): Folder with the note.

    Returns:
        str, optional: The checkpoint; None if nothing was saved yet.

    Raises:
        CheckpointError: If the noted checkpoint is of no use and there is no
            other.
    """
    work_dir = Path(work_dir)
    noted = find_latest_checkpoint(str(work_dir)) or None
    places = [work_dir]
    if noted is None:
        reason = f'{work_dir}/last_checkpoint names no checkpoint'
    else:
        places.insert(0, Path(noted).parent)
        paths = [place / Path(noted).name for place in places]
        for path in paths:
            if is_whole(path):
                return str(path)
        damaged = any(path.is_file() for path in paths)
        reason = f'{work_dir}/last_checkpoint names {noted}, which is ' + (
            'damaged (cut off before its end)' if damaged else 'not there'
        )
    earlier = _newest_resumable(places)
    if earlier is not None:
        _warn(f'--resume: {reason}; continuing from {earlier} instead')
        return str(earlier)
    if noted is None:
        _warn(
            f'--resume: no checkpoint in {work_dir} yet, training starts '
            'from the beginning'
        )
        return None
    raise CheckpointError(
        f'{reason}, and there is no other whole one: name one with --resume '
        'PATH, or leave --resume out to start from the beginning.'
    )


def _newest_resumable(folders: list[Path]) -> Path | None:
    found = {path.resolve() for f in folders for path in f.glob('*.pth')}
    for path in sorted(found, key=os.path.getmtime, reverse=True):
        if is_whole(path) and _is_resumable(path):
            return path
    return None


def _is_resumable(path: Path) -> bool:
    """Whether it holds a training's state; best_*.pth and others do not."""
    try:
        # Only the outline is read; tensors stay on disk.
        content = torch.load(path, map_location='cpu', mmap=True)
    except Exception:
        return False
    # MMDetection 2.x's have no message hub.
    needed = {'meta', 'message_hub', 'optimizer'}
    return isinstance(content, dict) and needed <= set(content)


def _sync_folder(folder: Path) -> None:
    """Brings a renaming to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _room(folder: Path) -> str:
    try:
        return f', {shutil.disk_usage(folder).free} bytes are free'
    except OSError:
        return ''


def _warn(text: str) -> None:
    print_log(text, level=logging.WARNING)
