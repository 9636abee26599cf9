# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A resumed run says what it takes from the checkpoint."""

from __future__ import annotations

import logging

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..runtime import resume
from ..runtime.readable import plain
from ..upstream.mmengine_names import resumes


@HOOKS.register_module()
class ResumeReportHook(Hook):
    """Tell where a resumed run's config is not the checkpoint's.

    Contract: when the Runner resumes, the config in the checkpoint is
    compared with today's, as data: nothing of it is executed. Schedulers,
    the optimizer's settings and the seed go on as the checkpoint says, since
    MMEngine loads their state; model, data, hooks and loops are what today's
    config makes. One warning lists what differs under these two heads.

    Raises:
        CheckpointError: On every rank, ahead of loading, if there are other
            schedulers than the checkpoint has states, or another optimizer.

    Examples:
        >>> default_hooks = dict(
        ...     resume_report=dict(type='ResumeReportHook'))
    """

    # Ahead of what converts a checkpoint.
    priority = 'VERY_HIGH'

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare, if this is a training that resumes."""
        if not resumes(runner) or not isinstance(
            runner.optim_wrapper, OptimWrapper
        ):
            return
        # Where they are missing, asking says so: ahead of loading.
        checkpoint['message_hub'], checkpoint['meta']['epoch']
        _take_equal_metainfo(runner, checkpoint['meta'])
        saved = getattr(checkpoint, 'config_text', None)
        source = getattr(checkpoint, 'source', 'the checkpoint')
        of_config = resume.config_changes(saved or '', runner.cfg.pretty_text)
        if of_config is None:
            _warn(f"{source} holds no config to compare with today's.")
            of_config = []
        of_state = resume.scheduler_changes(
            checkpoint.get('param_schedulers'), runner.param_schedulers
        )
        resume.check_kinds(of_config)
        if 'optimizer' in checkpoint:
            of_state += resume.optimizer_changes(
                checkpoint['optimizer'], runner.optim_wrapper
            )
        else:
            _warn(
                f"{source} does not hold the optimizer's state: momenta start "
                "anew, and settings are those of today's config."
            )
        text = resume.report(source, of_state, of_config)
        if text is not None:
            _warn(text)


def _take_equal_metainfo(runner: Runner, meta: dict) -> None:
    """Let metainfo that was made plain be the same as what it was.

    MMEngine compares the bytes of both, and warns.
    """
    today = getattr(runner.train_dataloader.dataset, 'metainfo', None)
    if repr(plain(today)) == repr(meta.get('dataset_meta')):
        meta['dataset_meta'] = today


def _warn(text: str) -> None:
    print_log(
        f'ResumeReportHook: {text}', logger='current', level=logging.WARNING
    )
