# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What TotalBatchHook's table says of a training."""

from __future__ import annotations

from collections.abc import Sequence

from mmengine.optim import _ParamScheduler
from mmengine.runner import Runner

from ..recipe import BatchPlan, plan_rows
from ..schedulers import WarmupParamScheduler
from ..updates import UpdateTrainLoop
from .batch_facts import micro_batches_per_epoch


def batch_rows(
    runner: Runner,
    plans: Sequence[BatchPlan],
    bn_sizes: Sequence[int | None],
) -> dict[str, str]:
    """Return texts by the names of their rows.

    Args:
        runner (Runner): In training.
        plans (Sequence[BatchPlan]): Of each BN size; one where there is none.
        bn_sizes (Sequence): The different BN sizes of the layers.
    """
    every = [plan_rows(plan) for plan in plans]
    rows = every[0]
    for name in ('BN statistics', 'BN groups'):
        rows[name] = (
            ' and '.join(row[name] for row in every)
            if bn_sizes
            else 'no MegDetSyncBN layer'
        )
    by_update = isinstance(runner.train_loop, UpdateTrainLoop)
    if by_update:
        rows['epoch'] = f'{len(runner.train_dataloader)} updates'
    elif micro_batches_per_epoch(runner) is not None:
        rows['epoch'] = f'{len(runner.train_dataloader)} micro-batches'
    for scheduler in _iteration_schedulers(runner):
        rows |= _length_row(scheduler, by_update)
    return rows | {'learning rate': _learning_rate(runner)}


def _iteration_schedulers(runner: Runner) -> list[_ParamScheduler]:
    """The schedulers that do not count epochs."""
    schedulers = runner.param_schedulers or []
    if isinstance(schedulers, dict):
        schedulers = [s for group in schedulers.values() for s in group]
    return [s for s in schedulers if not s.by_epoch]


def _length_row(scheduler: _ParamScheduler, by_update: bool) -> dict[str, str]:
    """The length of a scheduler that counts updates or micro-batches."""
    counts = getattr(scheduler, 'count', 'iters')
    unit = 'updates' if by_update or counts == 'updates' else 'micro-batches'
    text = f'{scheduler.end - scheduler.begin} {unit}'
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
