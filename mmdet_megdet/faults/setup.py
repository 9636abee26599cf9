# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A set-up would start, and then do nothing, or never end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    Runner,
)
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..ranks import all_raise, differences
from ..recipe import aspect_ratio_note
from ..runtime import check_warmup_ends, each_config
from ..schedulers import check_together
from ..upstream.mmengine_names import Kind, accumulation_of, built_loop

# Of MMEngine and mmdet.
_ENDLESS = ('InfiniteSampler', 'MultiSourceSampler')
# The loops that were looked at: a Runner may validate, then train.
_checked: WeakKeyDictionary[Runner, list[str]] = WeakKeyDictionary()


@HOOKS.register_module()
class SetupCheckHook(Hook):
    """Refuse a set-up that would start, and then do nothing, or never end.

    Before training, validation or testing all ranks refuse a data set that
    makes no batch, a train_cfg of no length, a sampler without an end where
    the loop waits for it, ranks with different numbers of batches, and
    schedulers that would never step or cannot run beside a warm-up.

    ``tools/train.py`` adds the hook, and TotalBatchHook, SyncBNGroupHook,
    DataCheckHook and PreemptionHook do the same.
    """

    # Behind TotalBatchHook, which sets the accumulation.
    priority = 'HIGH'

    def before_run(self, runner: Runner) -> None:
        """Check the set-up of all ranks; a collective."""
        check_setup(runner)


def check_setup(runner: Runner) -> None:
    """Refuse what cannot work, once for what a runner runs; a collective.

    To be called in ``before_run``, when ``accumulative_counts`` is set.
    """
    loops = built_loops(runner)
    if _checked.get(runner) == list(loops):
        return
    _checked[runner] = list(loops)
    with all_raise():
        if 'train' in loops:
            _check_length(loops['train'], runner.val_loop is not None)
            check_schedules(runner)
        for kind, loop in loops.items():
            if not isinstance(loop, IterBasedTrainLoop):
                check_end(loop.dataloader, kind)
    for kind, loop in loops.items():
        lengths = all_gather_object(len(loop.dataloader))
        check_lengths(loop.dataloader, kind, lengths)
        if isinstance(loop, EpochBasedTrainLoop) and len(lengths) > 1:
            check_same_lengths(lengths)
            check_orientations(loop.dataloader)


def built_loops(runner: Runner) -> dict[str, BaseLoop]:
    """Return the loops that a runner is going to run, by kind."""
    kinds: tuple[Kind, ...] = 'train', 'val', 'test'
    found = ((kind, built_loop(runner, kind)) for kind in kinds)
    return {kind: loop for kind, loop in found if loop is not None}


def _check_length(loop: BaseLoop, validates: bool) -> None:
    by_iteration = isinstance(loop, IterBasedTrainLoop)
    name = 'max_iters' if by_iteration else 'max_epochs'
    numbers = {name: getattr(loop, name)}
    if validates:
        milestones = getattr(loop, 'dynamic_milestones', [])  # from 0 on
        intervals = getattr(loop, 'dynamic_intervals', [])
        for start, interval in zip(milestones, intervals, strict=True):
            kind = 'dynamic_intervals' if start else 'val_interval'
            numbers[f'{kind} from {start} on'] = interval
    for name, number in numbers.items():
        if number < 1:
            raise ConfigError(
                f'train_cfg.{name}: {number} is no length. Give a number from '
                '1; for no validation set val_cfg, val_dataloader and '
                'val_evaluator to None.'
            )


def check_schedules(runner: Runner) -> None:
    """Refuse schedulers of a training that would not do what they say."""
    configs = runner.cfg.get('param_scheduler')
    check_warmup_ends(configs)
    loop = runner.train_loop
    by_iteration = isinstance(loop, IterBasedTrainLoop)
    for config in each_config(configs) if by_iteration else ():
        if config.get('convert_to_iter_based') and config.get('end') is None:
            raise ConfigError(
                f'param_scheduler: {config["type"]} has no end: the Runner '
                'would let it end after one epoch. Give its end, in epochs.'
            )
    # A loop of another kind counts updates.
    counts_steps = isinstance(loop, EpochBasedTrainLoop | IterBasedTrainLoop)
    by_optimizer: Any = runner.param_schedulers or []
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
                accumulation_of(wrapper) if counts_steps else 1,
                len(runner.train_dataloader),
            )
        except ValueError as error:
            raise ConfigError(f'param_scheduler: {error}') from None


def _check_steps(runner: Runner, scheduler: Any) -> None:
    """Refuse what is never stepped."""
    name, loop = type(scheduler).__name__, runner.train_loop
    if scheduler.by_epoch and isinstance(loop, IterBasedTrainLoop):
        raise ConfigError(
            f'param_scheduler: {name} counts epochs, and would never step in '
            f'{type(loop).__name__}. Give its lengths in iterations with '
            'by_epoch=False, or an end in epochs with '
            'convert_to_iter_based=True.'
        )
    if getattr(scheduler, 'need_val_args', False) and runner.val_loop is None:
        raise ConfigError(
            f'param_scheduler: {name} goes by the results of validation, and '
            'would never step without one. Add val_dataloader, val_cfg and '
            'val_evaluator, or choose another scheduler.'
        )


def check_end(loader: DataLoader, kind: str) -> None:
    """Refuse a loader without an end, if the loop waits for its end."""
    # The sampler of indices where there is one: mmdet's batch samplers would
    # keep what was not asked for.
    batches = loader.batch_sampler
    source: Any = loader if batches is None else batches
    sampler: Any = getattr(source, 'sampler', source)
    # Those that are known are not asked: of some data they would find no end.
    known = any(kind.__name__ in _ENDLESS for kind in type(sampler).__mro__)
    if not known and not _yields_more(sampler):
        return
    remedy = f"{kind}_dataloader.sampler=dict(type='DefaultSampler')"
    if kind == 'train':
        remedy += ", or train_cfg.type='IterBasedTrainLoop'"
    raise ConfigError(
        f'{kind}_dataloader: {type(sampler).__name__} gives more than the '
        f'{len(sampler)} it says, and the loop waits for its end. Set '
        f'{remedy}.'
    )


def _yields_more(sampler: Any) -> bool:
    """Return whether a sampler yields more than it says."""
    if not hasattr(sampler, '__len__') or len(sampler) == 0:
        return False
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    more = next(islice(sampler, len(sampler), None), None)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return more is not None


def check_lengths(loader: DataLoader, kind: str, lengths: list[int]) -> None:
    """Refuse a loader of no batch: in training on a rank, else on all."""
    if all(lengths) if kind == 'train' else any(lengths):
        return
    dataset: Any = loader.dataset
    size: Any = loader.batch_size or getattr(
        loader.batch_sampler, 'batch_size', 'another number'
    )
    raise ConfigError(
        f'{kind}_dataloader makes no batch on rank {lengths.index(0)}: the '
        f'data set has {len(dataset)} image(s) (after filtering), and a batch '
        f'of a rank takes {size}. Check ann_file and filter_cfg, take fewer '
        'images per GPU, or repeat the data set by RepeatDataset.'
    )


def check_same_lengths(lengths: Sequence[int]) -> None:
    """Refuse an epoch of different numbers of batches on ranks."""
    found = differences([{'the number of batches': n} for n in lengths])
    if found is not None:
        raise ConfigError(
            f'the ranks would wait for each other in vain: {found}. Give all '
            'of them the same data and batch size, and a sampler that rounds '
            "up (DefaultSampler's round_up=True)."
        )


def check_orientations(loader: DataLoader) -> None:
    """Refuse mmdet's batches by orientation where ranks can differ.

    A collective; :func:`aspect_ratio_note` says why.
    """
    batches: Any = loader.batch_sampler
    # By name, since nothing else here needs mmdet.
    kinds = [kind.__name__ for kind in type(batches).__mro__]
    with all_raise():
        note: str | None
        if 'MultiDataAspectRatioBatchSampler' in kinds:
            note = (
                'MultiDataAspectRatioBatchSampler(drop_last=True) makes '
                'another number of batches on every rank: ranks would wait '
                'for each other in vain. Train by iteration '
                "(train_cfg.type='IterBasedTrainLoop')."
            )
        elif 'AspectRatioBatchSampler' in kinds:
            note = aspect_ratio_note(len(batches.sampler), batches.batch_size)
        else:
            return
        # The look at the data may take seconds: only if it matters.
        look = note and batches.drop_last
        if look and _has_both_orientations(batches.sampler.dataset):
            raise ConfigError(note)


def _has_both_orientations(dataset: Any) -> bool:
    infos = map(dataset.get_data_info, range(len(dataset)))
    # Those of videos have it in their frames.
    firsts = (info.get('images', [info])[0] for info in infos)
    portraits = (first['width'] < first['height'] for first in firsts)
    one = next(portraits, None)
    return any(portrait != one for portrait in portraits)
