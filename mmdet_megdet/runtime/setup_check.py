# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set-ups that would start, and then do nothing, or never end."""

from __future__ import annotations

from weakref import WeakSet

from mmengine.dist import all_gather_object
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    Runner,
)

from .config import ConfigError
from .loaders import check_batches, check_orientations
from .schedules import check_schedules

_checked: WeakSet[Runner] = WeakSet()


def check_setup(runner: Runner) -> None:
    """Refuse what cannot work, once for a runner; a collective.

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
    if runner in _checked:
        return
    _checked.add(runner)
    train = _built(runner, 'train')
    epochs = isinstance(train, EpochBasedTrainLoop)
    try:
        if train is not None:
            _check_length(train)
            if runner.val_loop is not None:
                _check_validation(train)
            endless_is_fine = isinstance(train, IterBasedTrainLoop)
            check_batches(train.dataloader, 'train', endless_is_fine)
            check_schedules(runner)
        for kind in ('val', 'test'):
            loop = _built(runner, kind)
            if loop is not None:
                check_batches(loop.dataloader, kind)
        mine = None, len(train.dataloader) if epochs else None
    except ConfigError as error:
        mine = str(error), None
    by_rank = all_gather_object(mine)
    for error, _ in by_rank:
        if error is not None:
            raise ConfigError(error)
    if epochs and runner.world_size > 1:
        _check_same_lengths([length for _, length in by_rank])
        check_orientations(train.dataloader)


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
