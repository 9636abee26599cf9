# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What can go wrong in a long training: one file a fault.

Each has the hook that looks for the fault, and what the hook does about it.

Two methods of hooks are not MMEngine's own. ``on_error(runner, error)`` is
called by :class:`~mmdet_megdet.updates.UpdateTrainLoop` when an exception
leaves training: on the rank that raised alone, on each hook that has the
method in the order of priorities, after which the exception goes on; a stock
loop does not call it. No collective may be made there, since the other ranks
may be anywhere, and none is sure to be called if one before it raises. It is
for letting go of what was taken (:class:`FiniteLossHook`'s forward hook,
:class:`PreemptionHook`'s signal handler), for adding to the error's message
(:class:`OutOfMemoryHook`), and for a last line in the log
(:class:`RankWatchHook`). ``before_interrupt(runner)`` is called by
:class:`PreemptionHook` when all ranks have agreed to stop after an update: on
all of them, in the ``after_train_iter`` of that update and ahead of the
checkpoint, so collectives are allowed. It is for what a checkpoint must hold;
:class:`~mmdet_megdet.hooks.SyncBNGroupHook` pools running statistics there.

Beside the recipe's hooks a number is earlier the smaller it is. Ahead of all
stands SameRunHook (HIGHEST, 0), before ranks do anything else together; then
TotalBatchHook and ResumeReportHook (VERY_HIGH, 10), SetupCheckHook (HIGH, 30),
which looks at the accumulation that TotalBatchHook has set, SyncBNGroupHook
(ABOVE_NORMAL, 40), FiniteLossHook and OutOfMemoryHook (NORMAL, 50) and
DataCheckHook (LOW, 70), behind hooks that change a pipeline. Behind MMEngine's
CheckpointHook (VERY_LOW, 90) come RestartHook (90), RankWatchHook (95), for
which the work of other hooks is part of the step before, and last
ReadableCheckpointHook and PreemptionHook (LOWEST, 100), which ends training.
"""

from .checkpoint import AtomicCheckpointHook, latest_checkpoint
from .data import (
    CheckedPipeline,
    DataCheckHook,
    Mode,
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
from .rank_watch import RankWatch, RankWatchHook, is_collective_error
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

__all__ = [
    'AtomicCheckpointHook',
    'CheckedPipeline',
    'DataCheckHook',
    'FiniteLossHook',
    'Mode',
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
