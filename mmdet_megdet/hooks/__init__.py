# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The recipe's own hooks."""

from .bn_stats_monitor import BNStatsError, BNStatsMonitorHook
from .gradient_noise import GradientNoiseHook
from .module_variance import ModuleVarianceHook
from .sync_bn_group import SyncBNGroupHook
from .total_batch import TotalBatchHook
from .unit_loss import UnitLossHook

__all__ = [
    'BNStatsError',
    'BNStatsMonitorHook',
    'GradientNoiseHook',
    'ModuleVarianceHook',
    'SyncBNGroupHook',
    'TotalBatchHook',
    'UnitLossHook',
]
