# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Faults of a long training: one file each, with the hook that handles it.

Two methods of hooks are not MMEngine's own. UpdateTrainLoop calls
``on_error(runner, error)`` when an exception ends training, on the rank that
raised alone: no collectives. PreemptionHook calls ``before_interrupt(runner)``
on all ranks ahead of the checkpoint, for what that must hold.

Priorities, of which the smaller goes first, the recipe's hooks in brackets:
SameRunHook 0; ResumeReportHook 10 (TotalBatchHook 10); SetupCheckHook 30
(BNStatsMonitorHook 30, SyncBNGroupHook 40); FiniteLossHook and OutOfMemoryHook
50; DataCheckHook 70; AtomicCheckpointHook and RestartHook 90; RankWatchHook
95; ReadableCheckpointHook and PreemptionHook, which ends training, 100.
"""

from .checkpoint import AtomicCheckpointHook, latest_checkpoint
from .data import DataCheckHook, check_annotation_files
from .loss import FiniteLossHook
from .memory import OutOfMemoryHook
from .preemption import PreemptionHook
from .rank_watch import RankWatchHook
from .readable_checkpoint import ReadableCheckpointHook
from .restart import RestartHook
from .resume import ResumeReportHook
from .same_run import SameRunHook, check_same_run
from .setup import SetupCheckHook, check_setup
from .watch import is_collective_error

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
    'check_annotation_files',
    'check_same_run',
    'check_setup',
    'is_collective_error',
    'latest_checkpoint',
]
