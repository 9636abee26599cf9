# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The gradient noise scale: which batch the data reward."""

from .advice import (
    epochs_factor,
    linear_lr,
    module_factors,
    noise_limited_lr,
    square_root_lr,
)
from .estimator import (
    Moments,
    NoiseScale,
    RunningNoise,
    from_parts,
    noise_scale,
)
from .meter import GradientMeter, Sketch, Split
from .parts import TOTAL, coupled_ranks, parts_of
from .record import Measurement, open_record, read_records

__all__ = [
    'TOTAL',
    'GradientMeter',
    'Measurement',
    'Moments',
    'NoiseScale',
    'RunningNoise',
    'Sketch',
    'Split',
    'coupled_ranks',
    'epochs_factor',
    'from_parts',
    'linear_lr',
    'module_factors',
    'noise_limited_lr',
    'noise_scale',
    'open_record',
    'parts_of',
    'read_records',
    'square_root_lr',
]
