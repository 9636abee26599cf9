# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What training writes, training can read."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..runtime.readable import check_readable, plain


@HOOKS.register_module()
class ReadableCheckpointHook(Hook):
    """Write checkpoints that torch's safe loading reads back.

    Contract: what a checkpoint is about to hold is put into plain types
    (ConfigDict becomes dict, a NumPy string text, and so on; see
    :func:`~mmdet_megdet.runtime.readable.plain`). What has no such form is
    refused, by key, type and remedy: before training what is known then
    (metainfo, message hub, schedulers, optimizer), and ahead of each
    writing, the first one included, what has been added since.

    Raises:
        CheckpointError: Before training on every rank; ahead of a writing on
            the rank that writes.

    Examples:
        >>> default_hooks = dict(
        ...     readable_checkpoint=dict(type='ReadableCheckpointHook'))
    """

    # Behind what adds to a checkpoint.
    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        """Check what is known."""
        dataset = runner.train_dataloader.dataset
        schedulers = runner.param_schedulers or []
        if not isinstance(schedulers, dict):
            schedulers = {'': schedulers}
        content = dict(
            meta=dict(dataset_meta=getattr(dataset, 'metainfo', None)),
            message_hub=runner.message_hub.state_dict(),
            optimizer=runner.optim_wrapper.state_dict(),
            param_schedulers={
                name: [scheduler.state_dict() for scheduler in every]
                for name, every in schedulers.items()
            },
        )
        check_readable(plain(content), 'before training')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make it plain, and check it."""
        for key, value in checkpoint.items():
            checkpoint[key] = plain(value)
        check_readable(checkpoint, 'nothing was written')
