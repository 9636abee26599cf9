# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The optimizer's batch in the Runner: the same on whatever hardware."""

from __future__ import annotations

import logging

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..faults import check_setup
from ..recipe import BatchPlan, PlanError, format_table
from ..runtime import check_lr_scaling
from ..updates import UpdateNote, UpdateTrainLoop, resumed_epoch, unit_of
from ..upstream.mmengine_names import built_loop, set_accumulation
from .batch_facts import (
    agreed_facts,
    batch_rows,
    batches_note,
    micro_batches_per_epoch,
)

_NO_UNITS = (
    '\nAn update has these images on any hardware. BatchNorm, without a '
    'bn_size in images, takes its statistics over others on other hardware.'
)
_TOTAL_OPTION = '--cfg-options default_hooks.total_batch.total_batch_size={}'


@HOOKS.register_module()
class TotalBatchHook(Hook):
    """Make the optimizer's batch the same on whatever hardware.

    Contract:

    - It splits ``total_batch_size`` over the ranks, the images per GPU (those
      of the train dataloader, wherever they were set) and the micro-steps of
      an update, by a :class:`~mmdet_megdet.recipe.BatchPlan`. What does not
      divide, BN size included, is refused on every rank with the same
      message. The log shows the plan as a table.
    - Under :class:`~mmdet_megdet.updates.UpdateTrainLoop` the Runner's
      iteration is the update. Checkpoints note that their ``iter`` counts
      updates, and of what batch; a run resumed on other hardware goes on at
      the next one.
    - Under MMEngine's ``EpochBasedTrainLoop``, for configs that have it, it
      sets ``accumulative_counts`` before training. Iterations are
      micro-batches there, for all that counts them but this package's
      warm-ups, and a run resumes on the same hardware alone.

    In a config it stands in ``default_hooks``, as ``total_batch``: a child
    config that sets ``custom_hooks`` would lose it there.

    Args:
        total_batch_size (int): Images of an optimizer update. Defaults to
            256, MegDet's.

    Raises:
        ConfigError: Before training, on every rank, if the batch cannot be
            split so or the config contradicts it.

    Examples:
        >>> default_hooks = dict(
        ...     total_batch=dict(type='TotalBatchHook', total_batch_size=256))
    """

    # Ahead of whatever looks at the count of iterations before training.
    priority = 'VERY_HIGH'

    def __init__(self, total_batch_size: int = 256) -> None:
        self.total_batch_size = total_batch_size
        self._plans: list[BatchPlan] = []
        self._bn_sizes: list[int | None] = []
        self._saved: dict | None = None

    def plan_for(self, runner: Runner, loader: DataLoader) -> BatchPlan:
        """Split the batch on this hardware; a collective.

        Args:
            runner (Runner): With its model.
            loader (DataLoader): For training.

        Raises:
            ConfigError: On every rank, if it cannot be split so.
        """
        facts = agreed_facts(runner, loader, self.total_batch_size)
        self._bn_sizes = facts['BN sizes']
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
        except PlanError as error:
            raise ConfigError(
                f'TotalBatchHook: {error.explain(_TOTAL_OPTION)}'
            ) from None
        except ConfigError as error:
            raise ConfigError(f'TotalBatchHook: {error}') from None
        self._images = facts['images of the data set']
        self._check_config(runner, facts['accumulative_counts'])
        return self._plan

    def before_run(self, runner: Runner) -> None:
        """Set the accumulation, if this run is a training."""
        # The Runner calls this in val() and test() too.
        if built_loop(runner, 'train') is None or not isinstance(
            runner.optim_wrapper, OptimWrapper
        ):
            return
        if isinstance(runner.optim_wrapper, OptimWrapperDict):
            raise ConfigError(
                'TotalBatchHook works with one optimizer. How many images an '
                'update of each of '
                f'{", ".join(runner.optim_wrapper.keys())} takes is up to '
                "the model's train_step: set accumulative_counts of each and "
                'remove the hook.'
            )
        loop = runner.train_loop
        if isinstance(loop, UpdateTrainLoop):
            check_setup(runner)
            return
        plan = self.plan_for(runner, loop.dataloader)
        if isinstance(loop, IterBasedTrainLoop) and plan.accumulation > 1:
            raise ConfigError(
                f'TotalBatchHook accumulates {plan.accumulation} micro-batches'
                f' an update, and {type(loop).__name__} counts micro-batches: '
                f'max_iters={loop.max_iters} would be '
                f'{loop.max_iters / plan.accumulation:g} updates. Set '
                "train_cfg=dict(type='UpdateTrainLoop', max_updates=..., "
                "_delete_=True) and train_dataloader.batch_sampler=dict(type='"
                "UpdateBatchSampler'): there all lengths are updates."
            )
        set_accumulation(runner.optim_wrapper, plan.accumulation)
        check_setup(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Note the plan by which the checkpoint was trained."""
        self._saved = checkpoint.get('meta', {}).get('batch_plan')

    def before_train(self, runner: Runner) -> None:
        """Continue what was resumed, and show the plan."""
        loop = runner.train_loop
        if isinstance(loop, UpdateTrainLoop):
            if loop.iter > 0:
                now = self._update_note(loop.epoch, loop.iter)
                loop.go_on_in(*resumed_epoch(self._saved, now, loop.iter))
        elif runner.iter > 0:
            _check_same_split(self._saved, self._split_note(runner), runner)
        table = format_table([batch_rows(runner, self._plans, self._bn_sizes)])
        if isinstance(loop, UpdateTrainLoop) and (
            not self._bn_sizes or None in self._bn_sizes
        ):
            table += _NO_UNITS
        print_log(f'TotalBatchHook:\n{table}', logger='current')
        for note in self._notes(runner):
            print_log(
                f'TotalBatchHook: {note}',
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

    @property
    def _plan(self) -> BatchPlan:
        # Where layers differ in BN size there are several, which agree in
        # all else.
        return self._plans[0]

    def _check_config(self, runner: Runner, counts: int | None) -> None:
        """Refuse what contradicts the plan."""
        plan = self._plan
        if counts not in (None, plan.accumulation):
            raise ConfigError(
                f'optim_wrapper.accumulative_counts={counts} contradicts '
                f'TotalBatchHook, which needs {plan.accumulation} for '
                f'{plan.total_batch_size} images with {plan.images_at_once} '
                f'at once ({counts} would make '
                f'{counts * plan.images_at_once}). Remove '
                'accumulative_counts, or set '
                'default_hooks.total_batch.total_batch_size.'
            )
        check_lr_scaling(
            runner.auto_scale_lr,
            plan.world_size,
            plan.images_per_gpu,
            plan.accumulation,
        )

    def _update_note(self, epoch: int, began: int) -> UpdateNote:
        return UpdateNote(
            counts='updates',
            total_batch_size=self._plan.total_batch_size,
            unit_size=self.unit_size,
            images=self._images,
            epoch=epoch,
            epoch_began=began,
        )

    def _split_note(self, runner: Runner) -> dict[str, int | str | None]:
        return dict(
            counts='micro-batches',
            world_size=self._plan.world_size,
            images_per_gpu=self._plan.images_per_gpu,
            total_batch_size=self._plan.total_batch_size,
            accumulation=self._plan.accumulation,
            iterations_per_epoch=micro_batches_per_epoch(runner),
        )

    def _notes(self, runner: Runner) -> list[str]:
        loop, plan = runner.train_loop, self._plan
        if isinstance(loop, UpdateTrainLoop):
            return []
        notes: list[str | None] = []
        if plan.accumulation > 1:
            notes.append(
                f'under {type(loop).__name__} an iteration is a micro-batch, '
                f'{plan.accumulation} of them an update: schedulers with '
                'by_epoch=False other than the Precise ones, EMA, intervals '
                'and the log count these, and a checkpoint inside an update '
                'loses its gradients. '
                "train_cfg.type='UpdateTrainLoop' counts updates."
            )
        if micro_batches_per_epoch(runner) is not None:
            notes.append(batches_note(runner.train_dataloader))
        return [note for note in notes if note is not None]


def _check_same_split(saved: dict | None, now: dict, runner: Runner) -> None:
    """Refuse to go on under a stock loop where iterations are others."""
    if saved is None:
        each = now['iterations_per_epoch']
        if each is None or runner.iter == runner.epoch * each:
            return
        reason = (
            f'has {runner.iter} iterations in {runner.epoch} epochs, which '
            f'are {runner.epoch * each} here, and does not say of what'
        )
    elif saved.get('counts') == 'updates':
        reason = 'counts updates'
    else:
        changes = [
            f'{key}={saved.get(key)} -> {now[key]}'
            for key in now
            if key != 'counts' and saved.get(key) != now[key]
        ]
        if not changes:
            return
        reason = f'was trained otherwise ({", ".join(changes)})'
    raise ConfigError(
        f'TotalBatchHook: {type(runner.train_loop).__name__} counts '
        f'micro-batches of this hardware, and the checkpoint {reason}. '
        'Resume with what it was trained with, or start from its weights '
        'alone (load_from without resume). A training by '
        "train_cfg.type='UpdateTrainLoop' goes on on any hardware."
    )
