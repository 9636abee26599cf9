# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set-ups that cannot work are refused."""

from __future__ import annotations

import random
from collections.abc import Sized
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    Runner,
)
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..recipe import aspect_ratio_note
from ..runtime import check_warmup_ends, each_config
from ..schedulers import check_together


def check_schedules(runner: Runner) -> None:
    """Refuse schedulers of a training that would not do what they say.

    Args:
        runner (Runner): With what training needs built.

    Raises:
        ConfigError: If there is one.
    """
    configs = runner.cfg.get('param_scheduler')
    check_warmup_ends(configs)
    if isinstance(runner.train_loop, IterBasedTrainLoop):
        _check_converted_ends(configs)
    by_optimizer = runner.param_schedulers or []
    wrapper = runner.optim_wrapper
    if isinstance(by_optimizer, dict):
        pairs = [(wrapper[name], by_optimizer[name]) for name in by_optimizer]
    else:
        pairs = [(wrapper, by_optimizer)]
    for wrapper, schedulers in pairs:
        for scheduler in schedulers:
            _check_steps(runner, scheduler)
        try:
            check_together(
                schedulers,
                _iterations_per_update(runner, wrapper),
                len(runner.train_dataloader),
            )
        except ValueError as error:
            raise ConfigError(f'param_scheduler: {error}') from None


def _check_converted_ends(configs: Any) -> None:
    """Refuse what the Runner would end after one epoch."""
    for config in each_config(configs):
        if config.get('convert_to_iter_based') and config.get('end') is None:
            raise ConfigError(
                f'param_scheduler: {config["type"]} has no end, and the '
                'Runner takes the training by iteration for one epoch: it '
                'would end there. Give its end, in epochs.'
            )


def _check_steps(runner: Runner, scheduler: _ParamScheduler) -> None:
    """Refuse what is never stepped."""
    name, loop = type(scheduler).__name__, runner.train_loop
    if scheduler.by_epoch and isinstance(loop, IterBasedTrainLoop):
        raise ConfigError(
            f'param_scheduler: {name} counts epochs, of which '
            f'{type(loop).__name__} has none: it would never step. Give its '
            'lengths in iterations with by_epoch=False, or add an end, in '
            'epochs, and convert_to_iter_based=True.'
        )
    if getattr(scheduler, 'need_val_args', False) and runner.val_loop is None:
        raise ConfigError(
            f'param_scheduler: {name} goes by the results of validation, of '
            'which this training has none: it would never step. Add '
            'val_dataloader, val_cfg and val_evaluator, or choose another '
            'scheduler.'
        )


def _iterations_per_update(runner: Runner, wrapper: OptimWrapper) -> int:
    """Return it; 1 for a loop of another kind, which counts updates."""
    stock = EpochBasedTrainLoop | IterBasedTrainLoop
    if not isinstance(runner.train_loop, stock):
        return 1
    return wrapper._accumulative_counts


# Of MMEngine and mmdet.
_ENDLESS = ('InfiniteSampler', 'MultiSourceSampler')


def check_lengths(loader: DataLoader, kind: str, lengths: list[int]) -> None:
    """Refuse a loader that makes no batch.

    Args:
        loader (DataLoader): The loader of this rank.
        kind (str): Whose it is: 'train', 'val' or 'test'.
        lengths (list[int]): Of the loaders of all ranks. In training each
            must make a batch, otherwise one of them.

    Raises:
        ConfigError: If it makes none.
    """
    if all(lengths) if kind == 'train' else any(lengths):
        return
    raise ConfigError(
        f'{kind}_dataloader makes no batch on rank {lengths.index(0)}: the '
        f'data set has {len(loader.dataset)} image(s) (after filtering), and '
        f'a batch of a rank takes {_batch_size(loader)}. Check its ann_file '
        'and filter_cfg, take fewer images per GPU or fewer GPUs, or repeat '
        'the data set by RepeatDataset.'
    )


def check_end(loader: DataLoader, kind: str) -> None:
    """Refuse a loader that does not stop, for a loop that waits for it.

    Args:
        loader (DataLoader): The loader of this rank.
        kind (str): Whose it is: 'train', 'val' or 'test'.

    Raises:
        ConfigError: If it does not; on this rank alone.
    """
    sampler = _innermost_sampler(loader)
    if not _is_endless(sampler):
        return
    remedy = f"{kind}_dataloader.sampler=dict(type='DefaultSampler')"
    if kind == 'train':
        remedy += ", or train_cfg.type='IterBasedTrainLoop'"
    raise ConfigError(
        f'{kind}_dataloader: {type(sampler).__name__} gives more than the '
        f'{len(sampler)} it says, without an end, and the loop waits for the '
        f'end. Set {remedy}.'
    )


def check_orientations(loader: DataLoader) -> None:
    """Refuse mmdet's batches by orientation where ranks can differ.

    A collective. How many batches a rank makes depends on how many of its
    images are portraits in that epoch; see :func:`aspect_ratio_note`.

    Args:
        loader (DataLoader): The train loader of this rank.

    Raises:
        ConfigError: On every rank.
    """
    note = _orientation_note(loader.batch_sampler)
    notes = [found for found in all_gather_object(note) if found is not None]
    # The look at the data may take seconds: only if it matters.
    if notes and _has_both_orientations(loader.batch_sampler.sampler.dataset):
        raise ConfigError(notes[0])


def _orientation_note(sampler: Any) -> str | None:
    # By name, since nothing else here needs mmdet.
    names = [kind.__name__ for kind in type(sampler).__mro__]
    if not getattr(sampler, 'drop_last', False):
        return None
    if 'MultiDataAspectRatioBatchSampler' in names:
        return (
            'MultiDataAspectRatioBatchSampler(drop_last=True) makes batches '
            'of each data set apart, of which every rank draws another '
            'number: ranks would make different numbers of iterations, and '
            'wait for each other in vain. Train by iteration '
            "(train_cfg.type='IterBasedTrainLoop')."
        )
    if 'AspectRatioBatchSampler' in names:
        return aspect_ratio_note(len(sampler.sampler), sampler.batch_size)
    return None


def _has_both_orientations(dataset: Any) -> bool:
    seen = set()
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        # Those of videos have it in their frames.
        info = info['images'][0] if 'images' in info else info
        seen.add(info['width'] < info['height'])
        if len(seen) == 2:
            return True
    return False


def _batch_size(loader: DataLoader) -> Any:
    return loader.batch_size or getattr(
        loader.batch_sampler, 'batch_size', 'another number'
    )


def _innermost_sampler(loader: DataLoader) -> Any:
    """What is iterated for an epoch: of indices where there is such a one.

    (mmdet's batch samplers would keep what was not asked for to the end.)
    """
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return getattr(batches, 'sampler', batches)


def _is_endless(sampler: Any) -> bool:
    if any(kind.__name__ in _ENDLESS for kind in type(sampler).__mro__):
        return True
    if not isinstance(sampler, Sized) or len(sampler) == 0:
        return False
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    more = next(islice(sampler, len(sampler), None), None)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return more is not None


# With the loops that were built then: a Runner may validate, then train.
_checked: WeakKeyDictionary[Runner, list[str]] = WeakKeyDictionary()


def check_setup(runner: Runner) -> None:
    """Refuse what cannot work, once for what a runner runs; a collective.

    To be called in ``before_run``, where the Runner has built what it is
    going to run, and when ``accumulative_counts`` is set.

    Args:
        runner (Runner): The runner.

    Raises:
        ConfigError: On every rank, if something is wrong on one of them: a
            loop of no length, a data set that makes no batch, a sampler that
            does not end, ranks with different numbers of batches, or
            schedulers that cannot do what they say.
    """
    loops = {kind: _built(runner, kind) for kind in ('train', 'val', 'test')}
    loops = {kind: loop for kind, loop in loops.items() if loop is not None}
    if _checked.get(runner) == list(loops):
        return
    _checked[runner] = list(loops)
    train = loops.get('train')
    try:
        if train is not None:
            _check_length(train)
            if runner.val_loop is not None:
                _check_validation(train)
            check_schedules(runner)
        for kind, loop in loops.items():
            if not isinstance(loop, IterBasedTrainLoop):
                check_end(loop.dataloader, kind)
        error = None
    except ConfigError as problem:
        error = str(problem)
    for found in all_gather_object(error):
        if found is not None:
            raise ConfigError(found)
    for kind, loop in loops.items():
        lengths = all_gather_object(len(loop.dataloader))
        check_lengths(loop.dataloader, kind, lengths)
        if isinstance(loop, EpochBasedTrainLoop) and len(lengths) > 1:
            _check_same_lengths(lengths)
            check_orientations(loop.dataloader)


def _built(runner: Runner, kind: str) -> BaseLoop | None:
    """A loop of this run; in val() and test() others are not built."""
    loop = getattr(runner, f'_{kind}_loop')
    return loop if isinstance(loop, BaseLoop) else None


def _check_length(loop: BaseLoop) -> None:
    name = 'max_epochs'
    if isinstance(loop, IterBasedTrainLoop):
        name = 'max_iters'
    length = getattr(loop, name)
    if length < 1:
        raise ConfigError(
            f'train_cfg.{name}={length} trains nothing: give a number from '
            '1, or test a checkpoint as it is (tools/test.py).'
        )


def _check_validation(loop: BaseLoop) -> None:
    intervals = dict(val_interval=getattr(loop, 'val_interval', 1))
    for start, each in zip(
        getattr(loop, 'dynamic_milestones', []),
        getattr(loop, 'dynamic_intervals', []),
        strict=True,
    ):
        intervals[f'dynamic_intervals, from {start} on'] = each
    for name, interval in intervals.items():
        if interval < 1:
            raise ConfigError(
                f'train_cfg.{name}: {interval} is no distance from one '
                'validation to the next. Give a number from 1; for none at '
                'all set val_cfg, val_dataloader and val_evaluator to None.'
            )


def _check_same_lengths(lengths: list[int]) -> None:
    if len(set(lengths)) == 1:
        return
    found = ', '.join(f'{n} on rank {r}' for r, n in enumerate(lengths))
    raise ConfigError(
        f'an epoch has different numbers of batches: {found}. The ranks would '
        'wait for each other in vain. Give all of them the same data and '
        "batch size, and a sampler that rounds up (DefaultSampler's "
        'round_up=True).'
    )


@HOOKS.register_module()
class SetupCheckHook(Hook):
    """Refuse a set-up that would start, and then do nothing, or never end.

    Contract: before training, validation or testing begins all ranks refuse,
    with the same message,

    - a data set that makes no batch on some rank, and a train_cfg of no
      length;
    - a sampler that does not end where the loop waits for its end;
    - ranks with different numbers of batches in an epoch, also those that
      mmdet's AspectRatioBatchSampler would make of portraits and landscapes;
    - schedulers that would never step, a warm-up without ``end``, and
      schedulers that cannot run beside a warm-up.

    ``tools/train.py`` adds the hook, and TotalBatchHook, SyncBNGroupHook,
    DataCheckHook and PreemptionHook do the same.

    Raises:
        ConfigError: On every rank.

    Examples:
        >>> default_hooks = dict(setup_check=dict(type='SetupCheckHook'))
    """

    # Behind TotalBatchHook, which sets the accumulation.
    priority = 'HIGH'

    def before_run(self, runner: Runner) -> None:
        """Check; a collective."""
        check_setup(runner)
