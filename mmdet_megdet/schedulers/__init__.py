# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Warm-ups of learning rate and momentum that count optimizer updates."""

from .conflicts import check_together
from .shapes import (
    PreciseCosineWarmup,
    PreciseCosineWarmupMomentum,
    PreciseCosineWarmupParamScheduler,
    PreciseExponentialWarmup,
    PreciseExponentialWarmupMomentum,
    PreciseExponentialWarmupParamScheduler,
    PreciseLinearWarmup,
    PreciseLinearWarmupMomentum,
    PreciseLinearWarmupParamScheduler,
    PreciseTwoStageWarmup,
    PreciseTwoStageWarmupMomentum,
    PreciseTwoStageWarmupParamScheduler,
)
from .warmup import WarmupParamScheduler

__all__ = [
    'PreciseCosineWarmup',
    'PreciseCosineWarmupMomentum',
    'PreciseCosineWarmupParamScheduler',
    'PreciseExponentialWarmup',
    'PreciseExponentialWarmupMomentum',
    'PreciseExponentialWarmupParamScheduler',
    'PreciseLinearWarmup',
    'PreciseLinearWarmupMomentum',
    'PreciseLinearWarmupParamScheduler',
    'PreciseTwoStageWarmup',
    'PreciseTwoStageWarmupMomentum',
    'PreciseTwoStageWarmupParamScheduler',
    'WarmupParamScheduler',
    'check_together',
]
