# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A machine leaves or joins an elastic job, and training restarts."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import RANK_LOST_STATUS, REQUEUE_STATUS, ConfigError
from ..recipe import most_images
from ..runtime import find_hook
from ..text import count

_AGENT = 'MEGDET_ELASTIC_AGENT'
_PR_SET_PDEATHSIG = 1  # of Linux


@HOOKS.register_module()
class RestartHook(Hook):
    """Log how many updates are lost, and made again, by a restart.

    Rank 0 notes the updates done in the work folder (``updates_done``).
    ``tools/train.py`` adds the hook to elastic jobs.
    """

    # Ahead of PreemptionHook, which ends the training.
    priority = 'VERY_LOW'

    @master_only
    def before_train(self, runner: Runner) -> None:
        """Log how many updates were lost since the last start."""
        self._note = Path(runner.work_dir, 'updates_done')
        now = runner.iter
        before = int(self._note.read_text()) if self._note.exists() else 0
        if max(before, now) == 0:
            return
        lost = max(before - now, 0)
        runner.logger.log(
            logging.WARNING if lost else logging.INFO,
            f'RestartHook: training goes on with {runner.world_size} rank(s) '
            f'after update {now}. It had come to update {max(before, now)}: '
            f'{lost} update(s) are lost and made again.',
        )

    @master_only
    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Record the number of updates done."""
        # Replaced in one step: this process may be killed.
        new = self._note.with_name(self._note.name + '.new')
        # The Runner counts it after its hooks.
        new.write_text(f'{runner.iter + 1}\n')
        new.replace(self._note)


def announce_agent() -> None:
    """Mark this process as the agent of the processes that it starts."""
    os.environ[_AGENT] = str(os.getpid())


def is_elastic() -> bool:
    """Return whether an elastic job's agent has started this process."""
    return _AGENT in os.environ


def end_with_agent() -> None:
    """Let SIGTERM come to this process when its elastic agent is gone."""
    if not is_elastic():
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ[_AGENT]):
        # It was gone before.
        os.kill(os.getpid(), signal.SIGTERM)


def would_fail_again(statuses: Collection[int]) -> bool:
    """Return whether processes failed by themselves, as they would again.

    A negative status is a signal's, which comes from outside.
    """
    passing = {RANK_LOST_STATUS, REQUEUE_STATUS}
    return any(status > 0 and status not in passing for status in statuses)


def planned_batch(cfg: Config) -> tuple[int, list[int | None]]:
    """Read images of an update, and the layers' BN sizes, from a config.

    No model is built. The sizes are ``[None]`` where no layer says a number.
    """
    total_batch = find_hook(cfg, 'TotalBatchHook')
    if total_batch is None:
        raise ConfigError(
            'the config does not say how many images an update takes: set '
            "default_hooks.total_batch=dict(type='TotalBatchHook')."
        )
    total = total_batch.get('total_batch_size', 256)
    sync_bn_group = find_hook(cfg, 'SyncBNGroupHook') or {}
    override = sync_bn_group.get('bn_size', 'layers')
    if override != 'layers':
        return total, [override]
    wrapper = cfg.get('model_wrapper_cfg') or {}
    sizes = _layer_sizes(cfg.get('model'))
    if wrapper.get('convert_bn'):
        sizes.append(wrapper.get('bn_size'))
    return total, list(dict.fromkeys(sizes)) or [None]


def _layer_sizes(node: Any) -> list[int | None]:
    """Return BN sizes of all ``MegDetSyncBN`` that a model's config names."""
    if isinstance(node, dict):
        kind = node.get('type')
        if 'MegDetSyncBN' in (kind, getattr(kind, '__name__', None)):
            return [node.get('bn_size')]
        node = list(node.values())
    if isinstance(node, list | tuple):
        return [size for part in node for size in _layer_sizes(part)]
    return []


def choose_images(cfg: Config, at_most: int, world_size: int) -> None:
    """Set the most images per GPU, up to a number, that split the batch."""
    total, bn_sizes = planned_batch(cfg)
    images = most_images(world_size, at_most, total, bn_sizes)
    if images is None:
        sizes = ' and '.join(map(str, bn_sizes))
        raise ConfigError(
            f'--max-images-per-gpu {at_most}: no number of images up to that '
            f'splits a total batch of {total} and a BN size of {sizes} over '
            f'{count(world_size, "GPU")}. tools/plan.py tells what divides.'
        )
    cfg.train_dataloader.batch_size = images
