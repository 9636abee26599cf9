# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Checks of what a warm-up is given."""

from __future__ import annotations

import math

from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.optim.scheduler.param_scheduler import INF, OptimizerType
from torch.optim import Optimizer


def check_steps(**steps: int) -> None:
    """Check that numbers of steps, given by name, are ints."""
    for name, value in steps.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(
                f'{name} must be an int, a number of steps, but got '
                f'{name}={value!r}'
            )


def check_range(begin: int, end: int) -> None:
    """Check the first and the last step of a warm-up."""
    check_steps(begin=begin, end=end)
    if end >= INF:
        raise ValueError(
            'end is required: give the step at which the warm-up is to '
            f'reach its end value, but got end={end}'
        )
    if not 0 <= begin < end:
        raise ValueError(
            f'a warm-up needs 0 <= begin < end, but got begin={begin}, '
            f'end={end}'
        )


def check_values(
    factor: float | None, start: float | None, end: float | None
) -> None:
    """Check ``start_factor``, ``start_value`` and ``end_value``."""
    if (factor is None) == (start is None) or (
        factor is not None and end is not None
    ):
        raise ValueError(
            'give start_factor (a factor of the base value), or start_value '
            'with or without end_value (absolute values), but got '
            f'start_factor={factor}, start_value={start}, end_value={end}'
        )
    if factor is not None and not 0 <= factor <= 1:
        raise ValueError(
            'start_factor is a factor of the base value and must be in '
            f'[0, 1], but got {factor}'
        )
    if start is not None and not 0 <= start < math.inf:
        raise ValueError(
            f'start_value must be finite and >= 0, but got {start}'
        )
    if end is not None and not 0 < end < math.inf:
        raise ValueError(f'end_value must be finite and > 0, but got {end}')


def check_optimizer(optimizer: OptimizerType, count: str) -> None:
    """Check that it is one optimizer, whose updates can be counted."""
    if isinstance(optimizer, OptimWrapperDict):
        raise TypeError(
            'a warm-up schedules one optimizer, but got an OptimWrapperDict: '
            f'build one warm-up for each of {list(optimizer.keys())}, as the '
            'Runner does.'
        )
    if count == 'updates' and not isinstance(
        optimizer, OptimWrapper | Optimizer
    ):
        raise TypeError(
            f'the updates of a {type(optimizer).__name__}, which is no '
            "OptimWrapper, cannot be counted. With count='iters' the warm-up "
            'counts iterations.'
        )
