# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What TotalBatchHook's table says of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mmengine.dist import all_gather_object
from mmengine.optim import _ParamScheduler
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..ranks import all_raise, differences
from ..recipe import BatchPlan, plan_rows
from ..runtime import images_per_gpu
from ..schedulers import WarmupParamScheduler
from ..sync_bn import bn_sizes
from ..updates import UpdateTrainLoop
from ..upstream.mmengine_names import accumulation_of
from .sync_bn_group import SyncBNGroupHook


def agreed_facts(
    runner: Runner, loader: DataLoader, total_batch_size: int
) -> dict[str, Any]:
    """Return what a plan is made from, the same on every rank; a collective.

    Args:
        runner (Runner): With its model.
        loader (DataLoader): For training.
        total_batch_size (int): Images of an optimizer update.

    Returns:
        dict[str, Any]: 'images per GPU', 'images of the data set', 'total
        batch', 'BN sizes' (the different ones; empty where no layer
        synchronises), and the config's own 'accumulative_counts' (None if it
        has none).

    Raises:
        ConfigError: If ranks differ, or one cannot tell.
    """
    dataset: Any = loader.dataset
    with all_raise():
        facts = {
            'images per GPU': images_per_gpu(loader),
            'images of the data set': len(dataset),
            'total batch': total_batch_size,
            'BN sizes': model_bn_sizes(runner),
            'accumulative_counts': _configured_counts(runner),
        }
    found = differences(all_gather_object(facts))
    if found is not None:
        raise ConfigError(
            f'TotalBatchHook: ranks differ: {found}. Start all of them with '
            'the same config and options.'
        )
    return facts


def micro_batches_per_epoch(runner: Runner) -> int | None:
    """Return a stock loop's iterations of an epoch; None without epochs."""
    if isinstance(runner.train_loop, IterBasedTrainLoop):
        return None
    return len(runner.train_dataloader)


def batches_note(loader: DataLoader) -> str | None:
    """Return a remedy where an epoch's batches are not all full, or None."""
    sampler: Any = loader.batch_sampler
    if not hasattr(sampler, 'drop_last'):
        return None
    images, each = len(sampler.sampler), images_per_gpu(loader)
    if sampler.drop_last or images % each == 0:
        return None
    return (
        f'the last batch of an epoch holds {images % each} image(s) instead '
        f'of {each} on each GPU, and its update fewer than the others. Leave '
        'it out with drop_last=True (of the batch sampler, or of the '
        'dataloader where it has none).'
    )


def model_bn_sizes(runner: Runner) -> list[int | None]:
    """Return the layers' different BN sizes, as SyncBNGroupHook has them.

    It is empty where no layer synchronises.
    """
    override: int | Literal['layers'] | None = 'layers'
    for hook in runner.hooks:
        if isinstance(hook, SyncBNGroupHook) and hook.bn_size != 'layers':
            override = hook.bn_size
    return list(dict.fromkeys(bn_sizes(runner.model, override)))


def _configured_counts(runner: Runner) -> int | None:
    """``accumulative_counts`` as the config has it; None if it has not."""
    config = runner.cfg.get('optim_wrapper')
    if not isinstance(config, dict):
        config = runner.optim_wrapper
    if isinstance(config, dict):
        return config.get('accumulative_counts')
    counts = accumulation_of(config)
    return None if counts == 1 else counts


def batch_rows(
    runner: Runner,
    plans: Sequence[BatchPlan],
    bn_sizes: Sequence[int | None],
) -> dict[str, str]:
    """Return the table's texts by the names of their rows.

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
