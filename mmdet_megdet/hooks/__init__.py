# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The recipe's own hooks.

Each stands in ``default_hooks`` under a key of its own. In the order in which
the Runner calls them (a number is earlier the smaller it is), beside
MMEngine's:

- 10, :class:`TotalBatchHook`: notes in checkpoints what ``iter`` counts, ahead
  of whatever looks at it.
- 30, :class:`BNStatsMonitorHook`: judges what ranks hold ahead of pooling.
- 40, :class:`SyncBNGroupHook`: makes the BN groups, which the hooks below ask
  for; pools ahead of SyncBuffersHook and EMAHook (50).
- 50, :class:`GradientNoiseHook`: measures an update once it is done.
- 60, :class:`ModuleVarianceHook`: makes factors of that, ahead of
  ParamSchedulerHook (70).
- 70, :class:`UnitLossHook`: reads the BN size that SyncBNGroupHook has set.
- 90, CheckpointHook: MMEngine's: saves what all of these have left.

Two methods are not MMEngine's: ``on_error(runner, error)``, called on the rank
on which an exception leaves training, lets go of what a hook has attached; and
``before_interrupt(runner)``, called on all ranks ahead of the checkpoint with
which ``PreemptionHook`` stops, leaves in the model what that must hold.
:mod:`mmdet_megdet.faults` says when each is called, and what is allowed there.
"""

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
