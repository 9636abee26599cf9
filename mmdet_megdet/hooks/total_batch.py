# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The optimizer's batch in the Runner: the same on whatever hardware."""

from __future__ import annotations

import logging

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict, _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, IterBasedTrainLoop, Runner

from ..recipe import (
    BatchPlan,
    PlanError,
    epoch_note,
    format_table,
    plan_rows,
    warmup_text,
)
from ..runtime.config import ConfigError, check_lr_scaling
from ..runtime.setup_check import check_setup
from ..schedulers import WarmupParamScheduler
from .batch_facts import agreed_facts, batches_note, iterations_per_epoch
from .batch_resume import continue_batch, iteration_schedulers

_TOTAL_OPTION = '--cfg-options default_hooks.total_batch.total_batch_size={}'


@HOOKS.register_module()
class TotalBatchHook(Hook):
    """Make the optimizer's batch the same on whatever hardware.

    Contract:

    - Before training it sets ``accumulative_counts`` of the optimizer
      wrapper to ``total_batch_size / (world size * images per GPU)``, by a
      :class:`~mmdet_megdet.recipe.BatchPlan`. The images per GPU are those
      of the train dataloader, wherever they were set. What does not divide,
      BN size included, is refused on every rank with the same message.
    - Warm-ups of this package count updates and so follow by themselves;
      schedulers that count epochs need not.
    - It logs the plan as a table, and warns where an epoch is not a whole
      number of updates.
    - The plan is noted in checkpoints. A run that resumes on other hardware
      is told so and goes on after the same epoch: the count of iterations is
      converted (see :func:`~.batch_resume.continue_batch`).

    In a config it stands in ``default_hooks``, as ``total_batch``: a child
    config that sets ``custom_hooks`` would lose it there.

    Args:
        total_batch_size (int): Images of an optimizer update. Defaults to
            256, MegDet's.
        lengths_in_iterations (bool): Says that the lengths in a config for
            ``IterBasedTrainLoop`` (``max_iters``, milestones, intervals) are
            meant in iterations, though these are not updates. Without it
            that loop is refused where gradients are accumulated. Defaults
            to False.

    Raises:
        ConfigError: Before training, on every rank, if the batch cannot be
            split so or the config contradicts it.

    Examples:
        >>> default_hooks = dict(
        ...     total_batch=dict(type='TotalBatchHook', total_batch_size=256))
    """

    # Ahead of whatever looks at the count of iterations before training.
    priority = 'VERY_HIGH'

    def __init__(
        self, total_batch_size: int = 256, lengths_in_iterations: bool = False
    ) -> None:
        self.total_batch_size = total_batch_size
        self.lengths_in_iterations = lengths_in_iterations
        self._plans: list[BatchPlan] = []
        self._bn_sizes: list[int | None] = []
        self._saved: dict | None = None

    def before_run(self, runner: Runner) -> None:
        """Set the accumulation, if this run is a training."""
        # The Runner calls this in val() and test() too, where neither is
        # built.
        if not isinstance(runner._train_loop, BaseLoop) or not isinstance(
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
        facts = agreed_facts(runner, self.total_batch_size)
        self._bn_sizes = facts['BN sizes']
        try:
            plans = [
                BatchPlan(
                    runner.world_size,
                    facts['images per GPU'],
                    facts['total batch'],
                    size,
                )
                # One even where no layer asks for statistics.
                for size in self._bn_sizes or [None]
            ]
        except PlanError as error:
            raise ConfigError(
                f'TotalBatchHook: {error.explain(_TOTAL_OPTION)}'
            ) from None
        except ValueError as error:
            raise ConfigError(f'TotalBatchHook: {error}') from None
        self._plans = plans
        self._check_config(runner, facts['accumulative_counts'])
        runner.optim_wrapper._accumulative_counts = self._plan.accumulation
        check_setup(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Note the plan by which the checkpoint was trained."""
        self._saved = checkpoint.get('meta', {}).get('batch_plan')

    def before_train(self, runner: Runner) -> None:
        """Continue what was resumed, and show the plan."""
        if runner.iter > 0:
            continue_batch(runner, self._saved, self._note(runner))
        table = format_table([self._rows(runner)])
        print_log(f'TotalBatchHook:\n{table}', logger='current')
        for note in self._epoch_notes(runner):
            print_log(
                f'TotalBatchHook: {note}',
                logger='current',
                level=logging.WARNING,
            )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Note the plan in the checkpoint."""
        # A model may be saved without having been trained.
        if self._plans:
            checkpoint['meta']['batch_plan'] = self._note(runner)

    @property
    def _plan(self) -> BatchPlan:
        # Where layers differ in BN size there are several, which agree in
        # all else.
        return self._plans[0]

    def _check_config(self, runner: Runner, counts: int | None) -> None:
        """Refuse what contradicts the plan, or means something else by it."""
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
        loop = runner.train_loop
        if (
            isinstance(loop, IterBasedTrainLoop)
            and plan.accumulation > 1
            and not self.lengths_in_iterations
        ):
            raise ConfigError(
                f'TotalBatchHook accumulates {plan.accumulation} iterations '
                f'an update, and {type(loop).__name__} counts iterations: '
                f'max_iters={loop.max_iters} would be '
                f'{loop.max_iters / plan.accumulation:g} updates. If the '
                'lengths in the config (max_iters, milestones, intervals) '
                'are meant in iterations on this hardware, say so: '
                'default_hooks.total_batch.lengths_in_iterations=True (and '
                'default_hooks.epoch_seed.type=IterTimerHook, since '
                'EpochSeedHook needs epochs). Or train by epoch.'
            )
        check_lr_scaling(
            runner.auto_scale_lr,
            plan.world_size,
            plan.images_per_gpu,
            plan.accumulation,
        )

    def _note(self, runner: Runner) -> dict[str, int | None]:
        return dict(
            world_size=self._plan.world_size,
            images_per_gpu=self._plan.images_per_gpu,
            total_batch_size=self._plan.total_batch_size,
            accumulation=self._plan.accumulation,
            iterations_per_epoch=iterations_per_epoch(runner),
        )

    def _rows(self, runner: Runner) -> dict[str, str]:
        every = [
            plan_rows(plan, iterations_per_epoch(runner))
            for plan in self._plans
        ]
        rows = every[0]
        for name in ('BN statistics', 'BN groups'):
            rows[name] = (
                ' and '.join(row[name] for row in every)
                if self._bn_sizes
                else 'no MegDetSyncBN layer'
            )
        for scheduler in iteration_schedulers(runner):
            rows |= _length_row(scheduler, self._plan)
        return rows | {'learning rate': _learning_rate(runner)}

    def _epoch_notes(self, runner: Runner) -> list[str]:
        iterations = iterations_per_epoch(runner)
        if iterations is None:
            return []
        notes = [
            epoch_note(iterations, self._plan.accumulation),
            batches_note(runner.train_dataloader),
        ]
        return [note for note in notes if note is not None]


def _length_row(scheduler: _ParamScheduler, plan: BatchPlan) -> dict[str, str]:
    """The length of a scheduler that counts updates or iterations."""
    length = scheduler.end - scheduler.begin
    if getattr(scheduler, 'count', 'iters') == 'updates':
        text = warmup_text(length, plan.iterations(length))
    else:
        text = warmup_text(length / plan.accumulation, length)
    if not isinstance(scheduler, WarmupParamScheduler):
        return {type(scheduler).__name__: text}
    name = scheduler.param_name
    return {'warm-up' if name == 'lr' else f'{name} warm-up': text}


def _learning_rate(runner: Runner) -> str:
    """The groups' own, which schedulers start from."""
    groups = runner.optim_wrapper.param_groups
    rates = sorted({g.get('initial_lr', g['lr']) for g in groups})
    if len(rates) == 1:
        return f'{rates[0]:g}'
    return f'{rates[0]:g} to {rates[-1]:g}, by parameter group'
