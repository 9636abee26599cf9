# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains on points by the stock Runner, and notes the weights."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmdet_megdet.runtime import adapt_config

CONFIG = Path(__file__).with_name('noise_config.py')
_COUNT = itertools.count()


@HOOKS.register_module(force=True)
class WeightRecorder(Hook):
    """Notes the weights that each update begins with, and what is attached."""

    priority = 'VERY_LOW'

    def before_train(self, runner):
        self.weights, self.hooked = [], []

    def before_train_iter(self, runner, *args, **kwargs):
        parameters = list(runner.model.parameters())
        self.weights.append(
            torch.cat([p.detach().clone() for p in parameters])
        )
        self.hooked.append(
            any(p._backward_hooks for p in parameters)
            or 'step' in vars(runner.optim_wrapper)
        )

    def after_train_iter(self, runner, *args, **kwargs):
        self.last = torch.cat(
            [p.detach().clone() for p in runner.model.parameters()]
        )


def noise_config(work_dir: Path, **settings) -> Config:
    """The config of a run.

    Args:
        work_dir (Path): Its folder.
        **settings: Overrides, with ``__`` for the dots.
    """
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict(
        {
            'work_dir': str(work_dir),
            # Runners of one name would share message hub and logger.
            'experiment_name': f'noise_{next(_COUNT)}',
            'custom_hooks': [dict(type='WeightRecorder')],
        }
    )
    cfg.merge_from_dict({k.replace('__', '.'): v for k, v in settings.items()})
    return cfg


def train_on_points(cfg: Config) -> tuple[Runner, WeightRecorder]:
    """Train; return the runner and what was noted."""
    runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    (recorder,) = [h for h in runner.hooks if isinstance(h, WeightRecorder)]
    return runner, recorder


def curves_of(work_dir: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of a curve that the folder's latest run has drawn."""
    path = max(work_dir.glob('*/vis_data/scalars.json'))
    lines = map(json.loads, path.read_text().splitlines())
    return [(line['step'], line[name]) for line in lines if name in line]
