# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Cross-GPU batch normalisation; needs torch and MMEngine's registry."""

from ..upstream.torch_names import group_timeout
from .convert import (
    BatchNormReport,
    convert_batch_norm,
    report_batch_norm,
    revert_to_batch_norm,
)
from .groups import bn_group, world_size
from .kernels import local_moments
from .layer import MegDetSyncBN
from .observation import CollectiveTimer, Observation
from .pooling import pool_running_stats
from .resolve import bn_sizes, resolve_bn_groups

__all__ = [
    'BatchNormReport',
    'CollectiveTimer',
    'MegDetSyncBN',
    'Observation',
    'bn_group',
    'bn_sizes',
    'convert_batch_norm',
    'group_timeout',
    'local_moments',
    'pool_running_stats',
    'report_batch_norm',
    'resolve_bn_groups',
    'revert_to_batch_norm',
    'world_size',
]
