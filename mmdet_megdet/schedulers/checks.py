# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Checks of a warm-up's arguments."""

from __future__ import annotations

import math

from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.param_scheduler import INF, OptimizerType
from torch.optim import Optimizer

from ..errors import ConfigError


def check_lengths(begin: int, end: int) -> None:
    """Refuse lengths that are not whole numbers in their order."""
    if end == INF:
        raise ConfigError(
            'end is required: the step that is to use the end value.'
        )
    if not type(begin) is type(end) is int or not 0 <= begin < end:
        raise ConfigError(
            'a warm-up needs whole numbers 0 <= begin < end, but got '
            f'begin={begin}, end={end}.'
        )


def check_values(
    factor: float | None, start: float | None, end: float | None
) -> None:
    """Refuse values out of range, and a factor beside absolute values."""
    if (factor is None) == (start is None) or (
        factor is not None and end is not None
    ):
        raise ConfigError(
            'give start_factor (a factor of the base value), or start_value '
            'with or without end_value (absolute values), but got '
            f'start_factor={factor}, start_value={start}, end_value={end}.'
        )
    for name, value, allowed, holds in (
        ('start_factor', factor, 'in [0, 1]', lambda x: 0 <= x <= 1),
        ('start_value', start, '>= 0, finite', lambda x: 0 <= x < math.inf),
        ('end_value', end, '> 0, finite', lambda x: 0 < x < math.inf),
    ):
        if value is not None and not holds(value):
            raise ConfigError(f'{name} must be {allowed}, but got {value}.')


def check_optimizer(
    optimizer: OptimizerType, count: str, by_epoch: bool
) -> None:
    """Refuse an optimizer whose updates cannot be counted."""
    if count not in ('updates', 'iters') or (by_epoch and count == 'iters'):
        raise ConfigError(
            "count is 'updates' or 'iters', and with by_epoch=True is left "
            f'out, but got count={count!r}, by_epoch={by_epoch}.'
        )
    countable = isinstance(optimizer, OptimWrapper | Optimizer)
    if count == 'updates' and not by_epoch and not countable:
        raise ConfigError(
            f'the updates of a {type(optimizer).__name__}, which is no '
            "OptimWrapper, cannot be counted: use count='iters'."
        )
