# Copyright (c) mmdet_megdet contributors. All rights reserved.
from .beside import check_together
from .warmup import (
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
from .warmup_base import WarmupParamScheduler

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
