# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Schedulers that conflict with a warm-up.

A warm-up and a scheduler that multiplies give the product of both. One that
adds to the value, or sets it, as if nobody else wrote it, gives something
else: it is refused where both are at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmengine.optim import _ParamScheduler
from mmengine.optim.scheduler.param_scheduler import (
    CosineAnnealingParamScheduler,
    CosineRestartParamScheduler,
    OneCycleParamScheduler,
    PolyParamScheduler,
    ReduceOnPlateauParamScheduler,
)

from ..errors import ConfigError

if TYPE_CHECKING:
    from .warmup import WarmupParamScheduler


def _beyond_a_factor(scheduler: _ParamScheduler) -> str | None:
    """Say how it changes the value other than by a factor, if it does."""
    match scheduler:
        case OneCycleParamScheduler():
            return 'has a warm-up of its own, and sets the value'
        case CosineRestartParamScheduler():
            return 'sets the value at each restart'
        case CosineAnnealingParamScheduler():
            if scheduler.eta_min or scheduler.eta_min_ratio:
                return 'approaches eta_min, not 0'
            if scheduler.T_max < scheduler.end - scheduler.begin:
                return f'is 0 at T_max={scheduler.T_max} and adds from there'
        case PolyParamScheduler() if scheduler.eta_min:
            return 'approaches eta_min, not 0'
        case ReduceOnPlateauParamScheduler() if any(scheduler.min_values):
            return 'keeps the value above min_value'
    # By name, since nothing else here needs mmdet.
    if any(
        kind.__name__ == 'QuadraticWarmupParamScheduler'
        for kind in type(scheduler).__mro__
    ):
        return 'adds to the value at every step'
    return None


def check_together(
    schedulers: Sequence[_ParamScheduler],
    iterations_per_update: int,
    iterations_per_epoch: int,
) -> None:
    """Refuse, ahead of training, a scheduler that conflicts with a warm-up.

    ``schedulers`` are of one optimizer, in the order in which they step.
    """
    units = dict(
        updates=iterations_per_update, iters=1, epochs=iterations_per_epoch
    )
    for place, warmup in enumerate(schedulers):
        if not hasattr(warmup, 'count'):
            continue
        unit = units[warmup.count]
        span = warmup.begin * unit, warmup.end * unit
        for other_place, other in enumerate(schedulers):
            each = iterations_per_epoch if other.by_epoch else 1
            # At the same iteration those that count epochs come last.
            later = (other.by_epoch, other_place) > (warmup.by_epoch, place)
            if _disturbs(other, warmup) and _meet(other, each, span, later):
                raise ConfigError(_refusal(warmup, other))


def refuse_if_written(
    warmup: WarmupParamScheduler,
    other: _ParamScheduler,
    before: int,
    touched: bool,
) -> None:
    """Refuse a scheduler that has written since the warm-up last did.

    For schedulers that are stepped without :func:`check_together`. ``before``
    is the ``last_step`` that it had then; ``touched`` says whether the value
    is another than the warm-up wrote.
    """
    written = touched and other.last_step > before
    written = written and other.last_step >= _first_change(other)
    if _disturbs(other, warmup) and (
        written or isinstance(other, OneCycleParamScheduler)
    ):
        raise ConfigError(_refusal(warmup, other))


def _disturbs(other: _ParamScheduler, warmup: WarmupParamScheduler) -> bool:
    return (
        other is not warmup
        and other.param_name == warmup.param_name
        and _beyond_a_factor(other) is not None
    )


def _first_change(scheduler: _ParamScheduler) -> int:
    """Return its first step, from 0, that may do more than multiply."""
    match scheduler:
        case CosineAnnealingParamScheduler():
            by_factor = not (scheduler.eta_min or scheduler.eta_min_ratio)
            return scheduler.T_max if by_factor else 1
        case PolyParamScheduler() | ReduceOnPlateauParamScheduler():
            return 1
    return 0


def _meet(
    other: _ParamScheduler, unit: int, span: tuple[int, int], later: bool
) -> bool:
    """Whether it writes between a warm-up's first and last writing."""
    if isinstance(other, OneCycleParamScheduler):
        # It also changes the base value of whatever is built after it.
        return True
    first, last = span
    steps = range(
        max(other.begin + _first_change(other), -(-first // unit)),
        min(other.end - 1, last // unit) + 1,
    )
    # At the warm-up's own steps the order decides.
    return any(
        first < step * unit < last or step * unit == (first if later else last)
        for step in steps
    )


def _refusal(warmup: WarmupParamScheduler, other: _ParamScheduler) -> str:
    name, unit = type(other).__name__, 'epochs' if other.by_epoch else 'iters'
    return (
        f'{name}(begin={other.begin}, end={other.end}, in {unit}) '
        f'{_beyond_a_factor(other)}, and cannot schedule {warmup.param_name} '
        f'together with {type(warmup).__name__}(begin={warmup.begin}, '
        f'end={warmup.end}, in {warmup.count}). Use one of the two, or a '
        f'scheduler that multiplies; or let {name} begin where the warm-up '
        'has ended, and stand after it in param_scheduler.'
    )
