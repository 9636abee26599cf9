# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set-ups that would start, and then do nothing, or never end."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from mmengine.dist import all_gather_object
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    Runner,
)

from .config import ConfigError
from .loaders import check_end, check_lengths, check_orientations
from .schedules import check_schedules

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
