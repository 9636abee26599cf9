# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Faults of a long training: one file each, with the hook that handles it.

Two methods of hooks are not MMEngine's own. ``on_error(runner, error)``:
UpdateTrainLoop calls it when an exception ends training, on the rank that
raised alone, and so without collectives; then the exception goes on. It is for
giving back what was taken, and for saying more of the error.
``before_interrupt(runner)``: PreemptionHook calls it on all ranks, after the
update at which they have agreed to stop and ahead of the checkpoint. It is for
what a checkpoint must hold, and collectives are allowed.

Priorities, of which the smaller goes first, the recipe's hooks in brackets:
SameRunHook 0, before ranks do anything else together; ResumeReportHook 10
(TotalBatchHook 10); SetupCheckHook 30, which looks at the accumulation that
was set (BNStatsMonitorHook 30, SyncBNGroupHook 40); FiniteLossHook and
OutOfMemoryHook 50; DataCheckHook 70, behind what changes a pipeline;
AtomicCheckpointHook and RestartHook 90; RankWatchHook 95; last
ReadableCheckpointHook and PreemptionHook 100, which ends training.
"""

from .checkpoint import AtomicCheckpointHook, latest_checkpoint
from .data import (
    DataCheckHook,
    check_annotation_files,
    data_check_of,
    is_cut_off,
    is_refused,
    mode_of,
    other_size,
)
from .loss import FiniteLossHook
from .memory import OutOfMemoryHook
from .preemption import PreemptionHook
from .rank_watch import RankWatchHook
from .readable_checkpoint import ReadableCheckpointHook
from .restart import (
    RestartHook,
    announce_agent,
    choose_images,
    end_with_agent,
    is_elastic,
    planned_batch,
    would_fail_again,
)
from .resume import ResumeReportHook
from .same_run import SameRunHook, check_same_run, settings, versions
from .setup import SetupCheckHook, check_setup
from .watch import RankWatch, is_collective_error

__all__ = [
    'AtomicCheckpointHook',
    'DataCheckHook',
    'FiniteLossHook',
    'OutOfMemoryHook',
    'PreemptionHook',
    'RankWatch',
    'RankWatchHook',
    'ReadableCheckpointHook',
    'RestartHook',
    'ResumeReportHook',
    'SameRunHook',
    'SetupCheckHook',
    'announce_agent',
    'check_annotation_files',
    'check_same_run',
    'check_setup',
    'choose_images',
    'data_check_of',
    'end_with_agent',
    'is_collective_error',
    'is_cut_off',
    'is_elastic',
    'is_refused',
    'latest_checkpoint',
    'mode_of',
    'other_size',
    'planned_batch',
    'settings',
    'versions',
    'would_fail_again',
]
