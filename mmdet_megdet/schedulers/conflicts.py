# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Schedulers that conflict with a warm-up.

A warm-up and a scheduler that multiplies give the product of both. One that
adds to the value, or sets it, as if nobody else wrote it, gives something
else: it is refused where both are at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

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


class Conflict(NamedTuple):
    """How a scheduler changes the value other than by a factor."""

    first: int  # of its steps, from 0; -1: as soon as it is built
    what: str


def _conflict(
    other: _ParamScheduler, warmup: WarmupParamScheduler
) -> Conflict | None:
    if other is warmup or other.param_name != warmup.param_name:
        return None
    match other:
        case OneCycleParamScheduler():
            # It also changes the base value of whatever is built after it.
            what = 'has a warm-up of its own, and sets the value'
            return Conflict(-1, what)
        case CosineRestartParamScheduler():
            return Conflict(0, 'sets the value at each restart')
        case CosineAnnealingParamScheduler():
            if other.eta_min or other.eta_min_ratio:
                return Conflict(1, 'approaches eta_min, not 0')
            if other.T_max < other.end - other.begin:
                what = f'is 0 at T_max={other.T_max} and adds from there'
                return Conflict(other.T_max, what)
        case PolyParamScheduler() if other.eta_min:
            return Conflict(1, 'approaches eta_min, not 0')
        case ReduceOnPlateauParamScheduler() if any(other.min_values):
            return Conflict(1, 'keeps the value above min_value')
    # By name, since nothing else here needs mmdet.
    kinds = [kind.__name__ for kind in type(other).__mro__]
    if 'QuadraticWarmupParamScheduler' in kinds:
        return Conflict(0, 'adds to the value at every step')
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
            conflict = _conflict(other, warmup)
            each = iterations_per_epoch if other.by_epoch else 1
            # At the same iteration those that count epochs come last.
            later = (other.by_epoch, other_place) > (warmup.by_epoch, place)
            if conflict and _meet(other, conflict.first, each, span, later):
                raise ConfigError(_refusal(warmup, other, conflict))


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
    conflict = _conflict(other, warmup)
    if conflict is None:
        return
    written = touched and other.last_step > before
    if conflict.first < 0 or (written and other.last_step >= conflict.first):
        raise ConfigError(_refusal(warmup, other, conflict))


def _meet(
    other: _ParamScheduler,
    first_change: int,
    unit: int,
    span: tuple[int, int],
    later: bool,
) -> bool:
    """Whether it writes between a warm-up's first and last writing."""
    if first_change < 0:
        return True
    first, last = span
    steps = range(
        max(other.begin + first_change, -(-first // unit)),
        min(other.end - 1, last // unit) + 1,
    )
    # At the warm-up's own steps the order decides.
    return any(
        first < step * unit < last or step * unit == (first if later else last)
        for step in steps
    )


def _refusal(
    warmup: WarmupParamScheduler, other: _ParamScheduler, conflict: Conflict
) -> str:
    name, unit = type(other).__name__, 'epochs' if other.by_epoch else 'iters'
    return (
        f'{name}(begin={other.begin}, end={other.end}, in {unit}) '
        f'{conflict.what}, and cannot schedule {warmup.param_name} together '
        f'with {type(warmup).__name__}(begin={warmup.begin}, '
        f'end={warmup.end}, in {warmup.count}). Use a scheduler that '
        f'multiplies; or let {name} begin where the warm-up has ended, and '
        'stand after it in param_scheduler.'
    )
