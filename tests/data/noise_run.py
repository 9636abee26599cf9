# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains on points by the stock Runner, and notes the weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import config_of

CONFIG = Path(__file__).with_name('noise_config.py')


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
    """Train; return the runner and what was noted.

    The settings are overrides of the config, with ``__`` for the dots.
    """
    hooks = dict(custom_hooks=[dict(type='WeightRecorder')])
    cfg = config_of(CONFIG, work_dir, **hooks | settings)
    runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    recorders = [h for h in runner.hooks if isinstance(h, WeightRecorder)]
    return runner, recorders[0]


def curves_of(work_dir: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of a curve that the folder's latest run has drawn."""
    path = max(work_dir.glob('*/vis_data/scalars.json'))
    lines = map(json.loads, path.read_text().splitlines())
    return [(line['step'], line[name]) for line in lines if name in line]
