# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups in the Runner: made before training, pooled before saving."""

from __future__ import annotations

import logging
from typing import Any, Literal

from mmengine.hooks import CheckpointHook, EMAHook, Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import ConfigError
from ..faults import check_setup
from ..ranks import all_raise, check_same
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

    Before training it resolves ``bn_size`` in all layers
    (:func:`~mmdet_megdet.sync_bn.resolve_bn_groups`), from the train
    dataloader's images per GPU and the world size. Before validation, testing
    and checkpoints it pools the running statistics over all ranks
    (:func:`~mmdet_megdet.sync_bn.pool_running_stats`), those of an EMA copy
    included.

    Args:
        bn_size (int, optional): Overrides the layers' own ``bn_size``. None
            stands for the images of all ranks. Defaults to 'layers', which
            leaves it to them.
        strict (bool): As :func:`~mmdet_megdet.sync_bn.resolve_bn_groups`
            takes it, for debugging. Defaults to False.

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
        check_same(facts, 'SyncBNGroupHook')
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
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook) and not hook.by_epoch:
                last = hook.save_last and hook.is_last_train_iter(runner)
                begin, interval = hook.save_begin, hook.interval
                if last or hook.every_n_train_iters(runner, interval, begin):
                    self._pool(runner)
                    return

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
