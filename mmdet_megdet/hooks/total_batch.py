# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The optimizer's batch in the Runner: the same on whatever hardware."""

from __future__ import annotations

import logging
from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict, _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..recipe import (
    BatchPlan,
    PlanError,
    epoch_note,
    format_table,
    plan_rows,
    warmup_text,
)
from ..runtime.batch import images_per_gpu
from ..runtime.config import ConfigError, check_lr_scaling
from ..schedulers import WarmupParamScheduler
from ..sync_bn import MegDetSyncBN
from .batch_resume import continue_batch, iteration_schedulers
from .sync_bn_group import SyncBNGroupHook

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
        facts = self._agreed_facts(runner)
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
        self._plans = plans
        self._check_config(runner, facts['accumulative_counts'])
        runner.optim_wrapper._accumulative_counts = self._plan.accumulation

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
        checkpoint['meta']['batch_plan'] = self._note(runner)

    @property
    def _plan(self) -> BatchPlan:
        # Where layers differ in BN size there are several, which agree in
        # all else.
        return self._plans[0]

    def _agreed_facts(self, runner: Runner) -> dict[str, Any]:
        """What the plan is made from, the same on every rank.

        An error of one rank is raised on all, or the others would wait.
        """
        try:
            facts = {
                'images per GPU': images_per_gpu(runner.train_dataloader),
                'iterations per epoch': _iterations_per_epoch(runner),
                'total batch': self.total_batch_size,
                'BN sizes': _bn_sizes(runner),
                'accumulative_counts': _configured_counts(runner),
            }
        except ValueError as error:
            facts = dict(error=str(error))
        by_rank = all_gather_object(facts)
        for found in by_rank:
            if 'error' in found:
                raise ConfigError(f'TotalBatchHook: {found["error"]}')
        for rank, found in enumerate(by_rank):
            differences = [
                f'{key} is {by_rank[0][key]} on rank 0 and {found[key]} on '
                f'rank {rank}'
                for key in found
                if found[key] != by_rank[0][key]
            ]
            if differences:
                raise ConfigError(
                    f'TotalBatchHook: ranks differ: {"; ".join(differences)}. '
                    'Start all of them with the same config and options.'
                )
        return by_rank[0]

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
                'default_hooks.total_batch.lengths_in_iterations=True. Or '
                'train by epoch.'
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
            iterations_per_epoch=_iterations_per_epoch(runner),
        )

    def _rows(self, runner: Runner) -> dict[str, str]:
        every = [
            plan_rows(plan, _iterations_per_epoch(runner))
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
        iterations = _iterations_per_epoch(runner)
        if iterations is None:
            return []
        notes = [
            epoch_note(iterations, self._plan.accumulation),
            _partial_batch_note(runner.train_dataloader),
        ]
        return [note for note in notes if note is not None]


def _iterations_per_epoch(runner: Runner) -> int | None:
    """None where training does not know epochs."""
    if isinstance(runner.train_loop, IterBasedTrainLoop):
        return None
    return len(runner.train_dataloader)


def _bn_sizes(runner: Runner) -> list[int | None]:
    """The different BN sizes of the model's layers, as SyncBNGroupHook says.

    Empty where no layer synchronises.
    """
    sizes = [
        module.bn_size
        for module in runner.model.modules()
        if isinstance(module, MegDetSyncBN)
    ]
    for hook in runner.hooks:
        if isinstance(hook, SyncBNGroupHook) and hook.bn_size != 'layers':
            sizes = [hook.bn_size] * len(sizes)
    return list(dict.fromkeys(sizes))


def _configured_counts(runner: Runner) -> int | None:
    """``accumulative_counts`` as the config has it; None if it has not."""
    config = runner.cfg.get('optim_wrapper')
    if isinstance(config, dict) and 'accumulative_counts' in config:
        return config['accumulative_counts']
    counts = runner.optim_wrapper._accumulative_counts
    return None if counts == 1 else counts


def _length_row(scheduler: _ParamScheduler, plan: BatchPlan) -> dict[str, str]:
    """The length of a scheduler that counts updates or iterations."""
    length = scheduler.end - scheduler.begin
    if getattr(scheduler, 'count', 'iters') == 'updates':
        text = warmup_text(length, plan.iterations(length))
    else:
        text = warmup_text(length / plan.accumulation, length)
    ours = isinstance(scheduler, WarmupParamScheduler)
    return {'warm-up' if ours else type(scheduler).__name__: text}


def _learning_rate(runner: Runner) -> str:
    """The groups' own, which schedulers start from."""
    groups = runner.optim_wrapper.param_groups
    rates = sorted({g.get('initial_lr', g['lr']) for g in groups})
    if len(rates) == 1:
        return f'{rates[0]:g}'
    return f'{rates[0]:g} to {rates[-1]:g}, by parameter group'


def _partial_batch_note(loader: DataLoader) -> str | None:
    sampler = loader.batch_sampler
    if getattr(sampler, 'drop_last', True):
        return None
    rest = len(sampler.sampler) % images_per_gpu(loader)
    if rest == 0:
        return None
    return (
        f'the last batch of an epoch holds {rest} image(s) instead of '
        f'{images_per_gpu(loader)} on each GPU, and its update fewer than the '
        'others. Leave it out with drop_last=True (of the batch sampler, or '
        'of the dataloader where it has none).'
    )
