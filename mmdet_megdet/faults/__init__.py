# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What can go wrong in a long training: each fault's hook and mechanism."""

from .checkpoint import AtomicCheckpointHook, latest_checkpoint
from .data import DataCheckHook
from .loss import FiniteLossHook
from .memory import OutOfMemoryHook
from .preemption import PreemptionHook
from .rank_watch import RankWatchHook
from .readable_checkpoint import ReadableCheckpointHook
from .restart import RestartHook
from .resume import ResumeReportHook
from .same_run import SameRunHook, check_same_run
from .setup import SetupCheckHook, check_setup

__all__ = [
    'AtomicCheckpointHook',
    'DataCheckHook',
    'FiniteLossHook',
    'OutOfMemoryHook',
    'PreemptionHook',
    'RankWatchHook',
    'ReadableCheckpointHook',
    'RestartHook',
    'ResumeReportHook',
    'SameRunHook',
    'SetupCheckHook',
    'check_same_run',
    'check_setup',
    'latest_checkpoint',
]
