# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Faults to order, and notes of where training was, for tests of faults."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class FaultHook(Hook):
    """Sends this process a signal, once, in an iteration of one rank.

    Args:
        place (str, optional): 'backward', 'batch' (ahead of an iteration),
            or 'save' (while a checkpoint is written). None is nowhere.
    """

    priority = 'VERY_LOW'

    def __init__(self, place=None, iteration=0, rank=0, signal='SIGKILL'):
        self.place = place
        self.when = iteration, rank
        self.signal = signal

    def before_train(self, runner):
        self.runner = runner
        if self.place == 'backward':
            model = getattr(runner.model, 'module', runner.model)
            model.head.weight.register_hook(self._strike)
        if self.place == 'save':
            fsync = os.fsync
            # Written, and about to be brought to the disk.
            os.fsync = lambda file: (self._strike(), fsync(file))

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if self.place == 'batch':
            self._strike()

    def _strike(self, *_):
        note = Path(self.runner.work_dir, 'struck')
        if (self.runner.iter, get_rank()) == self.when and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.Signals[self.signal])


@HOOKS.register_module()
class DiaryHook(Hook):
    """Notes what each rank trained on.

    A line for each micro-step, in ``diary_<rank>.txt``: the update, its
    number in its epoch, and the images, by their targets (which tell them
    apart as long as they are not augmented). And the norm layer's running
    mean as it is after the latest update, in ``mean_<rank>.pt``.

    It can make each micro-step longer by a ``pause`` in seconds, and in the
    first one of update ``hold`` wait for the file ``go``.
    """

    priority = 'VERY_LOW'

    def __init__(self, pause=0.0, hold=None):
        self.pause = pause
        self.hold = hold

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.batch_idx = batch_idx

    def before_micro_step(self, runner, index, data_batch):
        targets = data_batch['targets'].flatten().tolist()
        images = ' '.join(f'{target:.5f}' for target in targets)
        path = Path(runner.work_dir, f'diary_{get_rank()}.txt')
        with path.open('a') as diary:
            diary.write(f'{runner.iter} {self.batch_idx}: {images}\n')
        time.sleep(self.pause)
        go = Path(runner.work_dir, 'go')
        while runner.iter == self.hold and not go.exists():
            time.sleep(0.05)

    def after_train_iter(self, runner, *args, **kwargs):
        model = getattr(runner.model, 'module', runner.model)
        path = Path(runner.work_dir, f'mean_{get_rank()}.pt')
        torch.save(model.norm.running_mean, path)
