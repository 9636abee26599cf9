# Copyright (c) mmdet_megdet contributors. All rights reserved.
from .warmup import (
    PreciseLinearWarmup,
    PreciseLinearWarmupMomentum,
    PreciseLinearWarmupParamScheduler,
)

__all__ = [
    'PreciseLinearWarmup',
    'PreciseLinearWarmupMomentum',
    'PreciseLinearWarmupParamScheduler',
]
