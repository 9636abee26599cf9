# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains on points by the stock Runner, and notes the weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

import tests.data.noise_task  # noqa: F401  registers the task
from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import update_config


@HOOKS.register_module(force=True)
class WeightRecorder(Hook):
    """Notes the weights that each update begins with, and what is attached."""

    priority = 'VERY_LOW'

    def before_train(self, runner):
        self.weights, self.hooked = [], []

    def before_train_iter(self, runner, *args, **kwargs):
        parameters = list(runner.model.parameters())
        self.weights.append(torch.cat([p.detach() for p in parameters]))
        self.hooked.append(
            any(p._backward_hooks for p in parameters)
            or 'step' in vars(runner.optim_wrapper)
        )

    def after_train(self, runner):
        self.last = torch.cat([p.detach() for p in runner.model.parameters()])


def train_on_points(
    work_dir: Path, **settings
) -> tuple[Runner, WeightRecorder]:
    """Train 12 updates of 8 points; return the runner and what was noted.

    The settings are overrides of the config, with ``__`` for the dots.
    """
    ours = dict(
        model=dict(_delete_=True, type='MeanFinder'),
        train_dataloader__dataset=dict(
            _delete_=True, type='Points', length=96
        ),
        train_cfg__max_epochs=1,
        optim_wrapper__optimizer__lr=0.1,
        param_scheduler=None,
        val_dataloader=None,
        val_cfg=None,
        val_evaluator=None,
        default_hooks__checkpoint=dict(
            _delete_=True, type='CheckpointHook', interval=-1, save_last=False
        ),
        default_hooks__grad_noise=dict(type='GradientNoiseHook', interval=1),
        custom_hooks=[dict(type='WeightRecorder')],
    )
    cfg = update_config(work_dir, total=8, images=2, **ours | settings)
    runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    recorders = [h for h in runner.hooks if isinstance(h, WeightRecorder)]
    return runner, recorders[0]


def curves_of(work_dir: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of a curve that the folder's latest run has drawn."""
    path = max(work_dir.glob('*/vis_data/scalars.json'))
    lines = map(json.loads, path.read_text().splitlines())
    return [(line['step'], line[name]) for line in lines if name in line]
