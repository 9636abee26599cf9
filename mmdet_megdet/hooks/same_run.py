# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Ranks that do not run the same are refused."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..runtime.same_run import check_same_run


@HOOKS.register_module()
class SameRunHook(Hook):
    """Refuse ranks that were started with other versions or configs.

    Contract: before training, validation or testing begins, all ranks compare
    Python, torch, torchvision, mmcv, mmengine, mmdet, numpy, CUDA and NCCL by
    version, this package by its source, and the config by its settings. If
    they differ every rank raises, and names what differs and on which ranks.
    Settings that say where something lies (data, work folder, the checkpoint
    to continue from) may differ.

    It compares when model and data are built. ``tools/train.py`` and
    ``tools/test.py`` compare ahead of that too.

    Raises:
        ConfigError: On every rank, if they differ.

    Examples:
        >>> default_hooks = dict(same_run=dict(type='SameRunHook'))
    """

    # Ahead of what else ranks do together.
    priority = 'HIGHEST'

    def before_run(self, runner: Runner) -> None:
        """Compare; a collective."""
        check_same_run(runner.cfg)
