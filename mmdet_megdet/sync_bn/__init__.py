# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Cross-GPU batch normalisation."""

from .convert import (
    BatchNormReport,
    convert_batch_norm,
    report_batch_norm,
    revert_to_batch_norm,
)
from .groups import group_timeout, world_size
from .layer import MegDetSyncBN
from .pooling import pool_running_stats
from .resolve import bn_sizes, resolve_bn_groups

__all__ = [
    'BatchNormReport',
    'MegDetSyncBN',
    'bn_sizes',
    'convert_batch_norm',
    'group_timeout',
    'pool_running_stats',
    'report_batch_norm',
    'resolve_bn_groups',
    'revert_to_batch_norm',
    'world_size',
]
