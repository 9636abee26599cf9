# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set-ups that cannot work are refused."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..runtime.setup_check import check_setup


@HOOKS.register_module()
class SetupCheckHook(Hook):
    """Refuse a set-up that would start, and then do nothing, or never end.

    Contract: before training, validation or testing begins all ranks refuse,
    with the same message,

    - a data set that makes no batch on some rank, and a train_cfg of no
      length;
    - a sampler that does not end where the loop waits for its end;
    - ranks with different numbers of batches in an epoch, also those that
      mmdet's AspectRatioBatchSampler would make of portraits and landscapes;
    - schedulers that would never step, a warm-up without ``end``, and
      schedulers that cannot run beside a warm-up.

    ``tools/train.py`` adds the hook, and TotalBatchHook, SyncBNGroupHook,
    DataCheckHook and PreemptionHook do the same.

    Raises:
        ConfigError: On every rank.

    Examples:
        >>> default_hooks = dict(setup_check=dict(type='SetupCheckHook'))
    """

    # Behind TotalBatchHook, which sets the accumulation.
    priority = 'HIGH'

    def before_run(self, runner: Runner) -> None:
        """Check; a collective."""
        check_setup(runner)
