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
    """Sends this process a signal, once, at a place in training.

    Args:
        place (str, optional): 'backward', 'batch' (ahead of an iteration),
            or 'save' (while a checkpoint is written). Defaults to None:
            nothing happens.
        iteration (int): From 0. Defaults to 0.
        rank (int): The rank that it happens to. Defaults to 0.
        signal (str): Name of the signal. Defaults to 'SIGKILL'.
    """

    priority = 'VERY_LOW'

    def __init__(
        self,
        place: str | None = None,
        iteration: int = 0,
        rank: int = 0,
        signal: str = 'SIGKILL',
    ) -> None:
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
            note.write_text(repr(time.time()))
            os.kill(os.getpid(), signal.Signals[self.signal])


@HOOKS.register_module()
class DiaryHook(Hook):
    """Notes what each rank trained on.

    A line for each micro-step, in ``diary_<rank>.txt``: the update, its
    number in its epoch, and the images, by their targets (which tell them
    apart as long as they are not augmented). And the norm layer's running
    mean as it is after the latest update, in ``mean_<rank>.pt``.

    Args:
        pause (float): Seconds that a micro-step takes longer. Defaults to 0.
        hold (int, optional): The update, from 0, in whose first micro-step it
            waits for the file ``go`` in the work folder. Defaults to None.
    """

    priority = 'VERY_LOW'

    def __init__(self, pause: float = 0, hold: int | None = None) -> None:
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
