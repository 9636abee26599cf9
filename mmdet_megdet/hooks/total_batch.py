# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The optimizer's batch in the Runner: the same on whatever hardware."""

from __future__ import annotations

import logging
from typing import Any, Literal

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..faults import check_setup
from ..ranks import all_raise, check_same
from ..recipe import BatchPlan, format_table, plan_rows
from ..runtime import check_lr_scaling, images_per_gpu
from ..schedulers import WarmupParamScheduler
from ..sync_bn import bn_sizes
from ..updates import UpdateNote, UpdateTrainLoop, resumed_epoch, unit_of
from ..upstream.mmengine_names import (
    accumulation_of,
    built_loop,
    set_accumulation,
)
from .sync_bn_group import SyncBNGroupHook

_NO_UNITS = (
    '\nAn update has these images on any hardware. BatchNorm, without a '
    'bn_size in images, takes its statistics over others on other hardware.'
)


@HOOKS.register_module()
class TotalBatchHook(Hook):
    """Make the optimizer's batch the same on whatever hardware.

    Contract:

    - It splits ``total_batch_size`` over the ranks, the images per GPU and
      the micro-steps of an update, by a
      :class:`~mmdet_megdet.recipe.BatchPlan`, and logs it. What does not
      divide, BN size included, is refused on every rank alike.
    - Under :class:`~mmdet_megdet.updates.UpdateTrainLoop` the iteration is
      the update. Checkpoints note of what batch, and a run resumed on other
      hardware goes on at the next one.
    - Under MMEngine's ``EpochBasedTrainLoop`` it sets
      ``accumulative_counts`` before training. Iterations are micro-batches
      there, and a run resumes on the same hardware alone.

    It stands in ``default_hooks``: a child config that sets ``custom_hooks``
    would lose it there.

    Args:
        total_batch_size (int): Images of an optimizer update. Defaults to
            256, MegDet's.

    Examples:
        >>> default_hooks = dict(
        ...     total_batch=dict(type='TotalBatchHook', total_batch_size=256))
    """

    # Ahead of whatever looks at the count of iterations before training.
    priority = 'VERY_HIGH'

    def __init__(self, total_batch_size: int = 256) -> None:
        self.total_batch_size = total_batch_size
        # One for each BN size of the layers; they agree in all else.
        self._plans: list[BatchPlan] = []
        self._bn_sizes: list[int | None] = []
        self._saved: dict | None = None

    def plan_for(self, runner: Runner, loader: DataLoader) -> BatchPlan:
        """Split the batch on this hardware, or refuse; a collective."""
        facts = _agreed_facts(runner, loader, self.total_batch_size)
        self._bn_sizes = facts['BN sizes']
        self._images = facts['images of the data set']
        try:
            self._plans = [
                BatchPlan(
                    runner.world_size,
                    facts['images per GPU'],
                    facts['total batch'],
                    size,
                )
                # One even where no layer asks for statistics.
                for size in self._bn_sizes or [None]
            ]
            self.unit_size = unit_of(self.total_batch_size, self._bn_sizes)
        except ConfigError as error:
            raise ConfigError(f'TotalBatchHook: {error}') from None
        plan, counts = self._plans[0], facts['accumulative_counts']
        if counts not in (None, plan.accumulation):
            raise ConfigError(
                f'optim_wrapper.accumulative_counts={counts} contradicts '
                f'TotalBatchHook, which needs {plan.accumulation} for '
                f'{plan.total_batch_size} images with {plan.images_at_once} '
                'at once: remove it, or set total_batch_size.'
            )
        check_lr_scaling(runner.auto_scale_lr, plan.accumulation)
        return plan

    def before_run(self, runner: Runner) -> None:
        """Set the accumulation, if this run is a training."""
        # The Runner calls this in val() and test() too.
        if built_loop(runner, 'train') is None or not isinstance(
            runner.optim_wrapper, OptimWrapper
        ):
            return
        if isinstance(runner.optim_wrapper, OptimWrapperDict):
            raise ConfigError(
                'TotalBatchHook works with one optimizer, not with '
                f'{", ".join(runner.optim_wrapper.keys())}: set '
                'accumulative_counts of each and remove the hook.'
            )
        loop = runner.train_loop
        if not isinstance(loop, UpdateTrainLoop):
            micro_steps = self.plan_for(runner, loop.dataloader).accumulation
            if isinstance(loop, IterBasedTrainLoop) and micro_steps > 1:
                raise ConfigError(
                    f'TotalBatchHook: {type(loop).__name__} counts '
                    f'micro-batches, {micro_steps} an update: '
                    f'max_iters={loop.max_iters} would be '
                    f'{loop.max_iters / micro_steps:g} updates. Set '
                    "train_cfg=dict(type='UpdateTrainLoop', max_updates=..., "
                    '_delete_=True) and train_dataloader.batch_sampler='
                    "dict(type='UpdateBatchSampler')."
                )
            set_accumulation(runner.optim_wrapper, micro_steps)
        check_setup(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Note the plan by which the checkpoint was trained."""
        self._saved = checkpoint.get('meta', {}).get('batch_plan')

    def before_train(self, runner: Runner) -> None:
        """Continue what was resumed, and show the plan."""
        loop, plan = runner.train_loop, self._plans[0]
        by_update = isinstance(loop, UpdateTrainLoop)
        table = format_table([self._rows(runner)])
        if by_update and (not self._bn_sizes or None in self._bn_sizes):
            table += _NO_UNITS
        print_log(f'TotalBatchHook:\n{table}', logger='current')
        if by_update:
            if loop.iter > 0:
                now = self._update_note(loop.epoch, loop.iter)
                loop.go_on_in(*resumed_epoch(self._saved, now, loop.iter))
            return
        if runner.iter > 0:
            _check_same_split(self._saved or {}, self._split_note(runner))
        if plan.accumulation > 1:
            print_log(
                f'TotalBatchHook: under {type(loop).__name__} an iteration is '
                f'a micro-batch, {plan.accumulation} an update: stock '
                'schedulers with by_epoch=False, EMA, intervals and the log '
                'count these, and a checkpoint inside an update loses its '
                "gradients. train_cfg.type='UpdateTrainLoop' counts updates.",
                logger='current',
                level=logging.WARNING,
            )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Note in the checkpoint what its ``iter`` counts."""
        # A model may be saved without having been trained.
        if not self._plans:
            return
        meta, loop = checkpoint['meta'], runner.train_loop
        if isinstance(loop, UpdateTrainLoop):
            at = loop.epoch, loop.epoch_began
            # Behind the epoch's last update, at its end.
            if meta['epoch'] > loop.epoch and (
                meta['iter'] == loop.epoch_began + len(loop.dataloader)
            ):
                at = meta['epoch'], meta['iter']
            meta['batch_plan'] = dict(self._update_note(*at))
        else:
            meta['batch_plan'] = self._split_note(runner)

    def _rows(self, runner: Runner) -> dict[str, str]:
        """Return the plan as a table's texts by row."""
        rows, *others = map(plan_rows, self._plans)
        for name in ('BN statistics', 'BN groups'):
            texts = [row[name] for row in (rows, *others)]
            rows[name] = ' and '.join(texts)
            if not self._bn_sizes:
                rows[name] = 'no MegDetSyncBN layer'
        if not isinstance(runner.train_loop, IterBasedTrainLoop):
            stock = isinstance(runner.train_loop, EpochBasedTrainLoop)
            unit = 'micro-batches' if stock else 'updates'
            rows['epoch'] = f'{len(runner.train_dataloader)} {unit}'
        for scheduler in runner.param_schedulers or []:
            warms_up = isinstance(scheduler, WarmupParamScheduler)
            if warms_up and scheduler.param_name == 'lr':
                length = scheduler.end - scheduler.begin
                rows['warm-up'] = f'{length} {scheduler.count}'
        return rows

    def _update_note(self, epoch: int, began: int) -> UpdateNote:
        return UpdateNote(
            counts='updates',
            total_batch_size=self.total_batch_size,
            unit_size=self.unit_size,
            images=self._images,
            epoch=epoch,
            epoch_began=began,
        )

    def _split_note(self, runner: Runner) -> dict[str, int | str]:
        plan = self._plans[0]
        return dict(
            counts='micro-batches',
            world_size=plan.world_size,
            images_per_gpu=plan.images_per_gpu,
            total_batch_size=plan.total_batch_size,
            iterations_per_epoch=len(runner.train_dataloader),
        )


def _check_same_split(saved: dict, now: dict) -> None:
    """Refuse to go on under a stock loop where iterations are others."""
    changes = [
        f'{key}={saved.get(key)} -> {now[key]}'
        for key in now
        if saved.get(key) != now[key]
    ]
    if changes:
        raise ConfigError(
            'TotalBatchHook: this training loop counts micro-batches, and the '
            f'checkpoint was trained otherwise ({", ".join(changes)}). Resume '
            'with what it was trained with, or start from its weights alone '
            "(load_from without resume). train_cfg.type='UpdateTrainLoop' "
            'goes on on any hardware.'
        )


def _agreed_facts(
    runner: Runner, loader: DataLoader, total_batch_size: int
) -> dict[str, Any]:
    """Return the numbers for a plan, the same on every rank; a collective.

    'BN sizes' are the different ones of the layers, empty where no layer
    synchronises; 'accumulative_counts' is the config's own, None without.
    """
    dataset: Any = loader.dataset
    with all_raise():
        facts = {
            'images per GPU': images_per_gpu(loader),
            'images of the data set': len(dataset),
            'total batch': total_batch_size,
            'BN sizes': _bn_sizes(runner),
            'accumulative_counts': _configured_counts(runner),
        }
    check_same(facts, 'TotalBatchHook')
    return facts


def _bn_sizes(runner: Runner) -> list[int | None]:
    """Return the layers' different BN sizes, as SyncBNGroupHook has them."""
    override: int | Literal['layers'] | None = 'layers'
    for hook in runner.hooks:
        if isinstance(hook, SyncBNGroupHook) and hook.bn_size != 'layers':
            override = hook.bn_size
    return list(dict.fromkeys(bn_sizes(runner.model, override)))


def _configured_counts(runner: Runner) -> int | None:
    config = runner.cfg.get('optim_wrapper')
    if not isinstance(config, dict):
        config = runner.optim_wrapper
    if isinstance(config, dict):
        return config.get('accumulative_counts')
    counts = accumulation_of(config)
    return None if counts == 1 else counts
