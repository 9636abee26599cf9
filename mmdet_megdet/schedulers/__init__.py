# Copyright (c) mmdet_megdet contributors. All rights reserved.
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
from .siblings import check_together
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
