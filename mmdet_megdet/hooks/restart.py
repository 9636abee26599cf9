# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the restart of an elastic job has lost."""

from __future__ import annotations

import logging

from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..runtime.elastic import ProgressNote


@HOOKS.register_module()
class RestartHook(Hook):
    """Log how many updates are made again since a machine left or joined.

    Contract: rank 0 notes in the work folder (``updates_done``) each update
    that is done. When training begins again it logs with how many ranks, and
    how many of the updates noted are not in the checkpoint that it goes on
    from. ``tools/train.py`` adds the hook to elastic jobs.

    Examples:
        >>> default_hooks = dict(restart=dict(type='RestartHook'))
    """

    # Ahead of PreemptionHook, which ends the training.
    priority = 'VERY_LOW'

    @master_only
    def before_train(self, runner: Runner) -> None:
        """Compare with what was done before."""
        self._note = ProgressNote(runner.work_dir)
        before, now = self._note.read(), runner.iter
        if max(before, now) == 0:
            return
        lost = max(before - now, 0)
        print_log(
            f'RestartHook: training goes on with {runner.world_size} rank(s) '
            f'after update {now}. It had come to update {max(before, now)}: '
            f'{lost} update(s) are lost and made again.',
            logger='current',
            level=logging.WARNING if lost else logging.INFO,
        )

    @master_only
    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Note the update."""
        # The Runner counts it after its hooks.
        self._note.write(runner.iter + 1)
