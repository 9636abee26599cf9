# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A task whose gradient noise scale is known: finding the mean of points.

A loss of ``|w - x|^2 / 2`` has the gradient ``w - x``: its noise is the
points' variance, whatever the weights.
"""

from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.data.tiny_run import hook_of, train, update_config

SIZES = dict(first=6, second=3)
# Of the points in each dimension.
MEANS = torch.tensor([1.0] * 6 + [0.3] * 3)
DEVIATIONS = torch.tensor([2.0] * 6 + [0.5] * 3)


def points(count: int, seed: int = 0) -> Tensor:
    """Points, ``(count, 9)``, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 9, generator=generator).double() * DEVIATIONS
        + MEANS
    )


def definition(gradients: np.ndarray, images: int) -> dict:
    """Moments of an update by part of the model, from all pairs of parts.

    The gradients are those of independent parts, ``(parts, 9)``, in float64;
    NaN where a part has none.
    """
    moments = {}
    places = np.split(np.nan_to_num(gradients), [SIZES['first']], axis=1)
    for name, part in zip(SIZES, places, strict=True):
        g2 = np.mean([a @ b for a, b in combinations(part, 2)])
        whole = (part.mean(0) ** 2).sum()
        moments[name] = g2, images * (whole - g2)
    total = map(sum, zip(*moments.values(), strict=True))
    return dict(total=tuple(total), **moments)


@DATASETS.register_module()
class Points(Dataset):
    """96 points to be met, of which an eighth may lack the second part."""

    metainfo = dict(classes=('point',))

    def __init__(self, missing: bool = True) -> None:
        self.points = points(96, seed=5)
        if missing:
            self.points[:12, SIZES['first'] :] = torch.nan

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=self.points[index])


@MODELS.register_module()
class MeanFinder(BaseModel):
    """Weights that go to the points' mean, in two parts.

    The norm layer is called by nobody: it says how many ranks are a BN
    group. Of points that are NaN in the second part only the first is used.
    """

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.first, self.second = (
            nn.ParameterList([torch.zeros(size, dtype=torch.float64)])
            for size in SIZES.values()
        )
        self.norm = MegDetSyncBN(1, affine=False)
        self.requires_grad_(not frozen)

    def forward(self, inputs: Tensor, mode: str = 'loss') -> dict:
        first, second = inputs.split([*SIZES.values()], 1)
        loss = ((self.first[0] - first) ** 2).sum(1).mean() / 2
        if not second.isnan().any():
            loss = loss + ((self.second[0] - second) ** 2).sum(1).mean() / 2
        return dict(loss=loss)


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
        train_dataloader__dataset=dict(_delete_=True, type='Points'),
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
    runner = train(cfg)
    return runner, hook_of(runner, WeightRecorder)
