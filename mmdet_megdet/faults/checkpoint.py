# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The process is killed while it saves, or the disk is full.

A checkpoint gets its name when it is whole and on the disk, and older ones
are deleted after that: :class:`AtomicCheckpointHook`, in the place of
MMEngine's CheckpointHook. :func:`latest_checkpoint` finds the one from which
``--resume`` continues.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import os.path as osp
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process, master_only
from mmengine.fileio import LocalBackend, get_file_backend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner, find_latest_checkpoint, save_checkpoint

from ..errors import CheckpointError
from ..upstream.mmengine_names import resumed_from

ATOMIC_BACKEND = 'megdet_atomic'
# Behind the final name, so that a pattern such as *.pth does not meet it.
_UNFINISHED = '.unfinished'
# Key in the message hub, and so in every checkpoint, of the one that was saved
# inside an epoch.
_INTERRUPTED = 'interrupted_ckpt'


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook, safe against being killed and full disks.

    Contract, for checkpoints on a local or mounted disk:

    - A checkpoint has its final name only when it is whole and on the disk;
      until then it is ``<name>.unfinished`` in the same folder. What a killed
      run left of one is removed when the next training starts, with a
      warning.
    - The oldest checkpoint, and the previous best one, are deleted when the
      new one is whole. (MMEngine deletes first: a run that is killed in
      between has one less, or with ``max_keep_ckpts=1`` none.) So the disk
      has to hold ``max_keep_ckpts + 1``.
    - The file ``last_checkpoint`` is replaced last, in one step.
    - Only files of its own folder are deleted, whatever a resumed checkpoint
      says of earlier ones.
    - A checkpoint that cannot be written raises
      :class:`~mmdet_megdet.errors.CheckpointError`; earlier ones stay.

    Object stores (``out_dir='s3://...'``) and a ``backend_args`` of one's own
    write as they do; the order of deletion holds there too.

    Args:
        *args: As MMEngine's :class:`CheckpointHook`.
        **kwargs: As MMEngine's :class:`CheckpointHook`.

    Examples:
        >>> default_hooks = dict(
        ...     checkpoint=dict(type='AtomicCheckpointHook', interval=1))
    """

    # MMEngine's, which has no annotations.
    backend_args: dict | None
    file_backend: Any
    last_ckpt: str

    def before_train(self, runner: Runner) -> None:
        """Choose the writing, and clear away what a killed run left."""
        out_dir = self.out_dir or runner.work_dir
        chosen = self.backend_args or self.file_client_args
        if not chosen and type(get_file_backend(out_dir)) is LocalBackend:
            self.backend_args = dict(backend=ATOMIC_BACKEND)
        super().before_train(runner)
        if is_main_process() and isinstance(self.file_backend, LocalBackend):
            self._clear_away(runner)

    def save_inside_epoch(self, runner: Runner) -> str:
        """Save ``iter_N.pth`` after an iteration, inside an epoch.

        To be called on all ranks in ``after_train_iter``; returns the path.
        The file is deleted when the next regular checkpoint is whole.
        """
        done = runner.iter + 1
        path = self.file_backend.join_path(self.out_dir, f'iter_{done}.pth')
        if not self.by_epoch and path == self.last_ckpt:
            return path  # was saved just now
        runner.message_hub.update_info(_INTERRUPTED, path)
        self.last_ckpt = path
        self._write(runner, dict(epoch=runner.epoch, iter=done))
        return path

    def _clear_away(self, runner: Runner) -> None:
        source = resumed_from(runner)
        go_on = (
            f'This run continues from {source}.'
            if source
            else 'Earlier checkpoints are as they were.'
        )
        for name in remove_unfinished(self.out_dir):
            print_log(
                f'{name} was cut off while an earlier run wrote it to '
                f'{self.out_dir} (killed, or the machine failed); the rest '
                f'is removed. {go_on}',
                logger='current',
                level=logging.WARNING,
            )

    # The methods of CheckpointHook in which it deletes ahead of saving.

    def _save_checkpoint_with_step(
        self, runner: Runner, step: int, meta: dict
    ) -> None:
        outdated = []
        if self.max_keep_ckpts > 0:
            # A better score saves the same step once more.
            if step not in self.keep_ckpt_ids:
                if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                    outdated.append(self._path(self.keep_ckpt_ids[0]))
                self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info(
                'keep_ckpt_ids', list(self.keep_ckpt_ids)
            )
        self.last_ckpt = self._path(step)
        interrupted = runner.message_hub.get_info(_INTERRUPTED)
        if interrupted:
            runner.message_hub.update_info(_INTERRUPTED, '')
            outdated.append(interrupted)
        self._write(runner, meta)
        if is_main_process():
            self._remove(outdated)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        if not self.save_best:
            return
        backend = self.file_backend
        self.file_backend = late = _LateRemovals(backend)
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            self.file_backend = backend
        self._remove(late.waiting)

    @master_only
    def _publish_model(self, runner: Runner, ckpt_path: str) -> None:
        # Not by MMEngine's loader, which leaves the config out.
        data = self.file_backend.get(ckpt_path)
        checkpoint = torch.load(io.BytesIO(data), map_location='cpu')
        kept = {
            k: checkpoint[k] for k in checkpoint if k in self.published_keys
        }
        digest = hashlib.sha256(pickle.dumps(kept)).hexdigest()
        path = f'{osp.splitext(ckpt_path)[0]}-{digest[:8]}.pth'
        save_checkpoint(kept, path, backend_args=self.backend_args)
        print_log(f'{ckpt_path} is published as {path}.', logger='current')

    def _write(self, runner: Runner, meta: dict) -> None:
        """Save ``last_ckpt``, and the note that names it."""
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        folder, name = osp.split(self.last_ckpt)
        runner.save_checkpoint(
            folder,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if is_main_process():
            note = Path(runner.work_dir, 'last_checkpoint')
            write_atomically(self.last_ckpt.encode(), note)

    def _remove(self, paths: list[str]) -> None:
        best = getattr(self, 'best_ckpt_path_dict', {}).values()
        in_use = {self.last_ckpt, getattr(self, 'best_ckpt_path', None), *best}
        # A checkpoint that was resumed from says what is outdated: it could
        # name any file.
        folder = osp.realpath(self.out_dir)
        for path in paths:
            if (
                path not in in_use
                and osp.realpath(osp.dirname(path)) == folder
                and self.file_backend.isfile(path)
            ):
                self.file_backend.remove(path)

    def _path(self, step: int) -> str:
        name = self.filename_tmpl.format(step)
        return self.file_backend.join_path(self.out_dir, name)


class _LateRemovals:
    """A file backend whose removals wait."""

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self.waiting: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        self.waiting.append(path)


@register_backend(ATOMIC_BACKEND)
class AtomicLocalBackend(LocalBackend):
    """MMEngine's file backend for local disks, with atomic writes.

    Chosen by name: ``backend_args=dict(backend='megdet_atomic')``.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes as :func:`write_atomically` does."""
        write_atomically(obj, filepath)


def write_atomically(data: bytes, path: str | Path) -> None:
    """Write a file that is whole from the moment it has its name.

    It is written beside its place, brought to the disk and renamed, which
    replaces an earlier file in one step. Killed in between, a process leaves
    the earlier file as it was and one that :func:`remove_unfinished` finds.
    A disk that does not take it is a CheckpointError; nothing is left then.
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


def _sync_folder(folder: Path) -> None:
    """Bring a renaming to the disk."""
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


def remove_unfinished(folder: str | Path) -> list[str]:
    """Remove files whose writing was cut off; return their final names."""
    found = sorted(Path(folder).glob(f'*{_UNFINISHED}'))
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name.removesuffix(_UNFINISHED) for path in found]


def is_whole(path: str | Path) -> bool:
    """Return whether a file is a checkpoint that was written to its end.

    ``torch.save`` writes a zip archive, whose table of contents comes last.
    Only that is read: bytes that change later are found when it is loaded.
    """
    return Path(path).is_file() and zipfile.is_zipfile(path)


def latest_checkpoint(work_dir: str | Path) -> str | None:
    """Find where ``--resume`` continues, also in a work folder that moved.

    That is the checkpoint which MMEngine's ``last_checkpoint`` note names.
    Where the note or the checkpoint is missing or damaged, it is the newest
    whole one in the same folder with an optimizer's state, and a warning
    says so.

    Args:
        work_dir (str or Path): Folder with the note.

    Returns:
        str, optional: Its path; None if nothing was saved yet.

    Raises:
        CheckpointError: If the noted checkpoint is of no use and there is no
            other.
    """
    work_dir = Path(work_dir)
    noted = find_latest_checkpoint(str(work_dir))
    folders, reason = [work_dir], 'names no checkpoint'
    if noted:
        folders.insert(0, Path(noted).parent)
        paths = [folder / Path(noted).name for folder in folders]
        whole = next(filter(is_whole, paths), None)
        if whole is not None:
            return str(whole)
        damaged = any(path.is_file() for path in paths)
        reason = f'names {noted}, which is ' + (
            'damaged (cut off before its end)' if damaged else 'not there'
        )
    reason = f'{work_dir}/last_checkpoint {reason}'
    earlier = _newest_resumable(folders)
    if earlier is None and noted:
        raise CheckpointError(
            f'{reason}, and there is no other whole one: name one with '
            '--resume PATH, or leave --resume out to start from the beginning.'
        )
    if earlier is None:
        text = (
            f'no checkpoint in {work_dir} yet, training starts from the '
            'beginning'
        )
    else:
        text = f'{reason}; continuing from {earlier} instead'
    print_log(f'--resume: {text}', level=logging.WARNING)
    return None if earlier is None else str(earlier)


def _newest_resumable(folders: list[Path]) -> Path | None:
    found = {path.resolve() for f in folders for path in f.glob('*.pth')}
    newest_first = sorted(found, key=os.path.getmtime, reverse=True)
    return next(filter(_is_resumable, newest_first), None)


def _is_resumable(path: Path) -> bool:
    """Return whether it holds a training's state; best_*.pth does not."""
    if not is_whole(path):
        return False
    try:
        # Only the outline is read; tensors stay on disk.
        content = torch.load(path, map_location='cpu', mmap=True)
    except Exception:
        return False
    # MMDetection 2.x's have no message hub.
    needed = {'meta', 'message_hub', 'optimizer'}
    return isinstance(content, dict) and needed <= set(content)
