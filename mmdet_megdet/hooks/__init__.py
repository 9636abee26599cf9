# Copyright (c) mmdet_megdet contributors. All rights reserved.
from .atomic_checkpoint import AtomicCheckpointHook
from .bn_stats_monitor import BNStatsError, BNStatsMonitorHook
from .data_check import DataCheckHook
from .finite_loss import FiniteLossHook
from .gradient_noise import GradientNoiseHook
from .module_variance import ModuleVarianceHook
from .out_of_memory import OutOfMemoryHook
from .preemption import PreemptionHook
from .rank_watch import RankWatchHook
from .readable_checkpoint import ReadableCheckpointHook
from .restart import RestartHook
from .resume_report import ResumeReportHook
from .same_run import SameRunHook
from .setup_check import SetupCheckHook
from .sync_bn_group import SyncBNGroupHook
from .total_batch import TotalBatchHook
from .unit_loss import UnitLossHook

__all__ = [
    'AtomicCheckpointHook',
    'BNStatsError',
    'BNStatsMonitorHook',
    'DataCheckHook',
    'FiniteLossHook',
    'GradientNoiseHook',
    'ModuleVarianceHook',
    'OutOfMemoryHook',
    'PreemptionHook',
    'RankWatchHook',
    'ReadableCheckpointHook',
    'RestartHook',
    'ResumeReportHook',
    'SameRunHook',
    'SetupCheckHook',
    'SyncBNGroupHook',
    'TotalBatchHook',
    'UnitLossHook',
]
