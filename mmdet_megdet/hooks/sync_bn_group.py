# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups in the Runner: made before training, pooled before saving."""

from __future__ import annotations

import logging
from typing import Any, Literal

from mmengine.dist import all_gather_object
from mmengine.hooks import CheckpointHook, EMAHook, Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import ConfigError
from ..faults import check_setup
from ..ranks import all_raise, differences
from ..runtime import images_per_gpu
from ..sync_bn import (
    bn_sizes,
    pool_running_stats,
    resolve_bn_groups,
    world_size,
)


@HOOKS.register_module()
class SyncBNGroupHook(Hook):
    """Take BatchNorm's statistics over a given number of images.

    Contract:

    - Before training it tells every ``MegDetSyncBN`` how many consecutive
      ranks hold ``bn_size`` images, from the train dataloader's images per
      GPU and the world size, and makes the process groups. What cannot be
      split so is refused on every rank, with the nearest sizes that can.
    - Before validation, before testing and before a checkpoint it pools the
      running statistics over all ranks
      (:func:`~mmdet_megdet.sync_bn.pool_running_stats`), those of an EMA
      copy included.

    Args:
        bn_size (int, optional): Overrides the layers' own ``bn_size``. None
            stands for the images of all ranks. Defaults to 'layers', which
            leaves it to them.
        strict (bool): For debugging, let every layer check in every call
            that all ranks of its group are in the same layer; slow. Defaults
            to False.

    Examples:
        >>> norm_cfg = dict(type='MegDetSyncBN', bn_size=32)
        >>> default_hooks = dict(sync_bn_group=dict(type='SyncBNGroupHook'))
    """

    priority = 'ABOVE_NORMAL'

    def __init__(
        self,
        bn_size: int | Literal['layers'] | None = 'layers',
        strict: bool = False,
    ) -> None:
        self.bn_size = bn_size
        self.strict = strict

    def before_run(self, runner: Runner) -> None:
        """Refuse what cannot work, ahead of the groups; a collective."""
        check_setup(runner)

    def before_train(self, runner: Runner) -> None:
        """Make the BN groups."""
        if runner.cfg.get('sync_bn') is not None:
            raise ConfigError(
                f'sync_bn={runner.cfg.sync_bn!r} in the config has made the '
                'Runner replace every MegDetSyncBN. Remove it; to convert a '
                'model, set model_wrapper_cfg.convert_bn=True.'
            )
        with all_raise():
            images = images_per_gpu(runner.train_dataloader)
        # Ranks that make different process groups wait for each other.
        sizes = bn_sizes(runner.model, self.bn_size)
        facts = {'images per GPU': images, 'bn_size of the layers': sizes}
        different = differences(all_gather_object(facts))
        if different:
            raise ConfigError(
                f'SyncBNGroupHook: {different}. Start all ranks with the same '
                'config and options.'
            )
        groups = resolve_bn_groups(
            runner.model, images, self.bn_size, self.strict
        )
        if not groups:
            print_log(
                'SyncBNGroupHook: the model has no MegDetSyncBN layer, so no '
                'BatchNorm synchronises.',
                logger='current',
                level=logging.WARNING,
            )
        for ranks, layers in sorted(groups.items()):
            print_log(
                f'SyncBNGroupHook: {layers} MegDetSyncBN layers take their '
                f'statistics over {ranks * images} images: {ranks} of '
                f'{world_size()} ranks x {images} images per GPU'
                + (' (no communication)' if ranks == 1 else ''),
                logger='current',
            )

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Pool ahead of a checkpoint that counts iterations."""
        if any(
            _saves_after_this_iteration(hook, runner) for hook in runner.hooks
        ):
            self._pool(runner)

    def _pool(self, runner: Runner) -> None:
        # EMAHook swaps its buffers with the model's later.
        copies = [
            hook.ema_model
            for hook in runner.hooks
            if isinstance(hook, EMAHook) and hasattr(hook, 'ema_model')
        ]
        pool_running_stats(runner.model, *copies)

    # Ahead of whatever reads or saves them; PreemptionHook calls the first.
    before_interrupt = after_train_epoch = before_val = before_test = _pool


def _saves_after_this_iteration(hook: Hook, runner: Runner) -> bool:
    if not isinstance(hook, CheckpointHook) or hook.by_epoch:
        return False
    return hook.every_n_train_iters(
        runner, hook.interval, hook.save_begin
    ) or (hook.save_last and hook.is_last_train_iter(runner))
