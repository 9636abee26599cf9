# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The gradient noise scale: which batch the data reward."""

from .estimator import (
    Moments,
    NoiseScale,
    RunningNoise,
    from_groups,
    from_micro_steps,
    noise_scale,
)
from .record import (
    FILE_NAME,
    Measurement,
    open_record,
    parts_as_json,
    read_records,
)

__all__ = [
    'FILE_NAME',
    'Measurement',
    'Moments',
    'NoiseScale',
    'RunningNoise',
    'from_groups',
    'from_micro_steps',
    'noise_scale',
    'open_record',
    'parts_as_json',
    'read_records',
]
