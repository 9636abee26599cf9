# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A rank is killed, fails or stands still, and the others wait for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from ..sync_bn import group_timeout
from ..updates import place_of
from .watch import RankWatch

_TORCH_TIMEOUT = 1800.0  # gloo's, where the group does not tell its own


@HOOKS.register_module()
class RankWatchHook(Hook):
    """When ranks stop moving, let every log say which rank and in which step.

    A rank that has not moved for half of the collectives' timeout
    (``env_cfg.dist_cfg.timeout``) logs where it is, which ranks give no sign
    of life and where they were last, and where the others are. So does a rank
    that fails because it lost another one. The hook does not end a rank; the
    timeout does. It needs ``train_cfg.type='UpdateTrainLoop'``.
    """

    # Behind other hooks, whose work counts for the step ahead of it; ahead of
    # PreemptionHook, which is 'LOWEST' and asks for the watch.
    priority = 95

    watch: RankWatch | None = None

    def before_train(self, runner: Runner) -> None:
        """Start the watch; a collective."""
        self._runner = runner
        self._batch = self._step = 0
        timeout = group_timeout(dist.group.WORLD, torch.device(get_device()))
        seconds = timeout.total_seconds() if timeout else _TORCH_TIMEOUT
        self.watch = RankWatch(
            runner.rank, runner.world_size, seconds, runner.logger.error
        )
        self.watch.start()
        self._handle = runner.model.register_forward_hook(self._forwarded)

    def before_train_epoch(self, runner: Runner) -> None:
        """Record where this rank is."""
        self._at(f'epoch {runner.epoch + 1} (loading data)')

    def before_train_iter(
        self, runner: Runner, batch_idx: int, **_: Any
    ) -> None:
        """Record where this rank is."""
        self._batch = batch_idx
        self.before_micro_step(runner, 0)

    def before_micro_step(self, runner: Runner, index: int, **_: Any) -> None:
        """Record where this rank is."""
        self._step = index
        self._in_iteration('forward')

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        """Record where this rank is."""
        self._in_iteration('done, loading data')

    after_micro_step = after_train_iter

    def after_train_epoch(self, runner: Runner) -> None:
        """Record where this rank is."""
        self._at(f'between epochs {runner.epoch + 1} and {runner.epoch + 2}')

    def before_val_iter(
        self, runner: Runner, batch_idx: int, **_: Any
    ) -> None:
        """Record where this rank is; metrics come with the last batch."""
        self._at(
            f'validation after iteration {runner.iter}, batch '
            f'{batch_idx + 1} of {len(runner.val_dataloader)}'
        )

    def after_train(self, runner: Runner) -> None:
        """End the watch."""
        self._handle.remove()
        if self.watch is not None:
            self.watch.stop()

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Record where this rank failed, and which rank caused it."""
        if self.watch is not None:
            self.watch.fail(error)

    def _forwarded(self, model: nn.Module, *_: object) -> None:
        if model.training:
            self._in_iteration('backward')

    def _in_iteration(self, phase: str) -> None:
        place = place_of(self._runner, self._batch, self._step)
        self._at(f'{place} ({phase})')

    def _at(self, place: str) -> None:
        # Validation may come without training.
        if self.watch is not None:
            self.watch.at(place)
