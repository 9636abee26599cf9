# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The process is killed while it saves, or the disk is full."""

from __future__ import annotations

import logging
import os
import os.path as osp
import zipfile
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, get_file_backend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner, find_latest_checkpoint

from ..errors import CheckpointError

ATOMIC_BACKEND = 'megdet_atomic'
# Behind the final name, so that a pattern such as *.pth does not meet it.
_UNFINISHED = '.unfinished'
# Key in the message hub of the checkpoint that was saved inside an epoch.
_INTERRUPTED = 'interrupted_ckpt'


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook, safe against being killed and full disks.

    On a local or mounted disk a checkpoint has its final name only when it is
    whole and on the disk; until then it is ``<name>.unfinished``. The oldest
    one, and the previous best one, are deleted after that, and only in their
    own folder. One that cannot be written raises
    :class:`~mmdet_megdet.errors.CheckpointError`; earlier ones stay.

    Object stores (``out_dir='s3://...'``) and a ``backend_args`` of one's own
    write as they do. The options are those of :class:`CheckpointHook`.
    """

    # MMEngine's, which has no annotations.
    backend_args: dict | None
    file_backend: Any
    last_ckpt: str

    def before_train(self, runner: Runner) -> None:
        """Make writes atomic, and remove what a killed run left unfinished."""
        out_dir = self.out_dir or runner.work_dir
        chosen = self.backend_args or self.file_client_args
        if not chosen and type(get_file_backend(out_dir)) is LocalBackend:
            self.backend_args = dict(backend=ATOMIC_BACKEND)
        super().before_train(runner)
        backend = self.file_backend
        self.file_backend = _LateRemovals(backend)
        if not is_main_process() or not isinstance(backend, LocalBackend):
            return
        for path in sorted(Path(self.out_dir).glob(f'*{_UNFINISHED}')):
            path.unlink(missing_ok=True)
            runner.logger.warning(
                f'{path.name.removesuffix(_UNFINISHED)} was cut off while an '
                f'earlier run wrote it to {self.out_dir}; the rest is '
                'removed.'
            )

    def save_inside_epoch(self, runner: Runner) -> str:
        """Save ``iter_N.pth`` after an iteration, inside an epoch.

        To be called on all ranks in ``after_train_iter``; returns the path.
        The file is deleted when the next regular checkpoint is whole.
        """
        done = runner.iter + 1
        name = f'iter_{done}.pth'
        path = self.file_backend.join_path(self.out_dir, name)
        if not self.by_epoch and path == self.last_ckpt:
            return path  # was saved just now
        self.last_ckpt = path
        notes = {_INTERRUPTED: path, 'last_ckpt': path}
        runner.message_hub.update_info_dict(notes)
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            meta=dict(epoch=runner.epoch, iter=done),
            backend_args=self.backend_args,
        )
        if is_main_process():
            write_atomically(
                path.encode(), Path(runner.work_dir, 'last_checkpoint')
            )
        return path

    # The methods of CheckpointHook in which it deletes ahead of saving.

    def _save_checkpoint_with_step(
        self, runner: Runner, step: int, meta: dict
    ) -> None:
        interrupted = runner.message_hub.get_info(_INTERRUPTED)
        runner.message_hub.update_info(_INTERRUPTED, '')
        super()._save_checkpoint_with_step(runner, step, meta)
        self._remove_outdated(interrupted)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        super()._save_best_checkpoint(runner, metrics)
        if self.save_best:  # else validation may be without training
            self._remove_outdated()

    def _remove_outdated(self, interrupted: str | None = None) -> None:
        """Delete what waits for it, and the one of inside an epoch."""
        if not is_main_process():
            return
        backend, waiting = self.file_backend.backend, self.file_backend.waiting
        best = getattr(self, 'best_ckpt_path_dict', {}).values()
        in_use = {self.last_ckpt, getattr(self, 'best_ckpt_path', None), *best}
        # A checkpoint that was resumed from says what is outdated: it could
        # name any file.
        folder = osp.realpath(self.out_dir)
        for path in {interrupted or '', *waiting} - {'', *in_use}:
            inside = osp.realpath(osp.dirname(path)) == folder
            if inside and backend.isfile(path):
                backend.remove(path)
        waiting.clear()


class _LateRemovals:
    """A file backend whose removals wait."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.waiting: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.waiting.add(path)


@register_backend(ATOMIC_BACKEND)
class AtomicLocalBackend(LocalBackend):
    """MMEngine's file backend for local disks, with atomic writes."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes as :func:`write_atomically` does."""
        write_atomically(obj, filepath)


def write_atomically(data: bytes, path: str | Path) -> None:
    """Write a file so that it has its name only once it is complete."""
    path = Path(path)
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # brings the renaming to the disk
        os.close(folder)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise CheckpointError(
            f'cannot write {path} ({len(data)} bytes): {error.strerror}. Make '
            'room (one checkpoint more than max_keep_ckpts has to fit) and '
            'continue with --resume.'
        ) from error


def latest_checkpoint(work_dir: str | Path) -> str | None:
    """Find where ``--resume`` continues, also in a work folder that moved.

    That is the checkpoint which MMEngine's ``last_checkpoint`` note names.
    Where the note or the checkpoint is missing or cut off, it is the newest
    whole one in the same folder with an optimizer's state, with a warning;
    None if nothing was saved yet.
    """
    work_dir = Path(work_dir)
    note = find_latest_checkpoint(str(work_dir))
    noted = [Path(note), work_dir / Path(note).name] if note else []
    for path in noted:
        # torch.save writes a zip archive, whose table of contents is last.
        if zipfile.is_zipfile(path):
            return str(path)
    fault = f'names {note or "no checkpoint"}'
    if note:
        fault += ', which is not there or cut off'
    folders = {work_dir, *(path.parent for path in noted)}
    found = {path.resolve() for f in folders for path in f.glob('*.pth')}
    newest_first = sorted(found, key=os.path.getmtime, reverse=True)
    earlier = next(filter(_is_resumable, newest_first), None)
    if earlier is not None:
        text = f'continuing from {earlier}: {work_dir}/last_checkpoint {fault}'
    elif note:
        raise CheckpointError(
            f'{work_dir}/last_checkpoint {fault}, and there is no other whole '
            'one: name one with --resume PATH, or leave --resume out.'
        )
    else:
        text = f'no checkpoint in {work_dir} yet, training starts anew'
    print_log(f'--resume: {text}', level=logging.WARNING)
    return None if earlier is None else str(earlier)


def _is_resumable(path: Path) -> bool:
    """Return whether it holds a training's state; best_*.pth does not."""
    try:
        # Only the outline is read; tensors stay on disk.
        content = torch.load(path, map_location='cpu', mmap=True)
    except Exception:
        return False
    # MMDetection 2.x's have no message hub.
    needed = {'meta', 'message_hub', 'optimizer'}
    return isinstance(content, dict) and needed <= set(content)
