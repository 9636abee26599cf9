# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""SIGTERM to workers that a loop starts ahead of all hooks."""

import os
import signal

import psutil
import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmdet_megdet.errors import Preempted
from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import tiny_config


@HOOKS.register_module(force=True)
class TerminateAll(Hook):
    """Sends SIGTERM to the workers and their process, as Slurm does.

    Args:
        others (list[int]): Processes that are no workers of this run.
    """

    def __init__(self, others):
        self.others = others

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.workers = [
            child
            for child in psutil.Process().children()
            if child.pid not in self.others
            and child.status() != psutil.STATUS_ZOMBIE
        ]
        if runner.iter == 2:
            for process in (*self.workers, psutil.Process()):
                os.kill(process.pid, signal.SIGTERM)


@pytest.mark.parametrize('persistent', [True, False])
def test_sigterm_under_an_iteration_based_loop(tmp_path, persistent):
    cfg = tiny_config(
        tmp_path,
        4,
        4,
        train_dataloader__num_workers=2,
        train_dataloader__persistent_workers=persistent,
        train_dataloader__sampler=dict(type='InfiniteSampler', _delete_=True),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=30, _delete_=True),
        param_scheduler=None,
    )
    cfg.default_hooks = dict(
        checkpoint=dict(
            type='AtomicCheckpointHook', by_epoch=False, interval=30
        ),
        preemption=dict(type='PreemptionHook'),
    )
    others = [child.pid for child in psutil.Process().children()]
    cfg.custom_hooks = [dict(type='TerminateAll', others=others)]
    runner = Runner.from_cfg(adapt_config(cfg))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Preempted) as stop:
            runner.train()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert stop.value.code == 75
    assert (tmp_path / 'iter_3.pth').exists()
    (hook,) = [h for h in runner.hooks if isinstance(h, TerminateAll)]
    assert len(hook.workers) == 2
