# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Faults and pauses to order, and notes of where training was."""

import os
import signal
import time
from pathlib import Path

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmdet_megdet.faults import PreemptionHook


@HOOKS.register_module()
class FaultHook(Hook):
    """Sends this process a signal, once, in an iteration of one rank.

    Args:
        place (str, optional): 'backward', 'batch' (ahead of an iteration),
            or 'save' (while a checkpoint is written). None is nowhere.
    """

    priority = 'VERY_LOW'

    def __init__(self, place=None, iteration=0, rank=0, signal='SIGKILL'):
        self.place, self.signal = place, signal
        self.when = iteration, rank

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
        here = self.runner.iter, self.runner.rank
        if here == self.when and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.Signals[self.signal])


@HOOKS.register_module()
class WaitHook(Hook):
    """Waits for SIGTERM, or the file ``go_<update>``, ahead of an update.

    ``places`` are updates, from 0, and with how many ranks it waits there.
    Each rank that waits says so by the file ``waiting_<rank>``.
    """

    def __init__(self, places: list[tuple[int, int]]) -> None:
        self.places = places

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if (runner.iter, runner.world_size) not in map(tuple, self.places):
            return
        Path(runner.work_dir, f'waiting_{runner.rank}').touch()
        (hook,) = [h for h in runner.hooks if isinstance(h, PreemptionHook)]
        go = Path(runner.work_dir, f'go_{runner.iter}')
        while not (go.exists() or hook._signal.received()):
            time.sleep(0.05)


@HOOKS.register_module()
class DiaryHook(Hook):
    """Notes what each rank trained on.

    A line for each micro-step, in ``diary_<rank>.txt``: the update, its
    number in its epoch, and the images, by their targets (which tell them
    apart as long as they are not augmented). And the norm layer's running
    mean as it is after the latest update, in ``mean_<rank>.pt``.
    """

    priority = 'VERY_LOW'

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.batch_idx = batch_idx

    def before_micro_step(self, runner, index, data_batch):
        targets = data_batch['targets'].flatten().tolist()
        images = ' '.join(f'{target:.5f}' for target in targets)
        with Path(runner.work_dir, f'diary_{runner.rank}.txt').open('a') as f:
            f.write(f'{runner.iter} {self.batch_idx}: {images}\n')

    def after_train_iter(self, runner, *args, **kwargs):
        model = getattr(runner.model, 'module', runner.model)
        path = Path(runner.work_dir, f'mean_{runner.rank}.pt')
        torch.save(model.norm.running_mean, path)
