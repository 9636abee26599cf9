# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The gradient noise scale: which batch the data reward."""

from .advice import (
    CriticalBatch,
    averaged,
    dissimilarity,
    epochs_factor,
    fit_critical_batch,
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
from .meter import GradientMeter, ManyPiecesError, Sketch, Split
from .parts import TOTAL, coupled_ranks, parts_of
from .record import (
    FILE_NAME,
    Measurement,
    open_record,
    parts_as_json,
    read_records,
)

__all__ = [
    'FILE_NAME',
    'TOTAL',
    'CriticalBatch',
    'GradientMeter',
    'ManyPiecesError',
    'Measurement',
    'Moments',
    'NoiseScale',
    'RunningNoise',
    'Sketch',
    'Split',
    'averaged',
    'coupled_ranks',
    'dissimilarity',
    'epochs_factor',
    'fit_critical_batch',
    'from_parts',
    'linear_lr',
    'module_factors',
    'noise_limited_lr',
    'noise_scale',
    'open_record',
    'parts_as_json',
    'parts_of',
    'read_records',
    'square_root_lr',
]
