# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A task of a few weights for tests of the machinery around a model.

Random augmentation is drawn from all three global generators, in the data
loader's workers.
"""

import random

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import DATASETS, METRICS, MODELS, OPTIM_WRAPPERS
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset


@DATASETS.register_module()
class TinyImages(Dataset):
    """Noise whose mean is to be guessed, brightened at random if asked."""

    metainfo = dict(classes=('noise',))

    def __init__(self, length: int, augment: bool = False) -> None:
        self.length = length
        self.augment = augment

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict:
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(3, 8, 8, generator=generator) + index / 8
        if self.augment:
            inputs += random.random() + np.random.rand() + torch.rand(())
        return dict(inputs=inputs, targets=inputs.mean().reshape(1))


@MODELS.register_module()
class TinyRegressor(BaseModel):
    """Convolution, norm layer, linear head; it fails on rank ``fail_on``."""

    def __init__(
        self,
        norm_cfg: dict | None = None,
        fail_on: int | None = None,
        data_preprocessor: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor)
        self.conv = nn.Conv2d(3, 4, 3)
        norm_cfg = norm_cfg or dict(type=nn.BatchNorm2d)
        self.norm = MODELS.build(dict(norm_cfg, num_features=4))
        self.head = nn.Linear(4, 1)
        self.fail_on = fail_on

    def forward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor | None = None,
        mode: str = 'tensor',
    ) -> dict | list:
        if mode == 'loss' and self.fail_on == get_rank():
            raise RuntimeError('failing as the test asked for')
        x = self.norm(self.conv(inputs)).relu().mean((2, 3))
        guess = self.head(x)
        if mode != 'loss':
            return [dict(error=e) for e in (guess - targets).abs().flatten()]
        return dict(loss=mse_loss(guess, targets))


@METRICS.register_module()
class TinyError(BaseMetric):
    """Mean absolute error."""

    def process(self, data_batch: dict, data_samples: list) -> None:
        self.results.extend(sample['error'].item() for sample in data_samples)

    def compute_metrics(self, results: list) -> dict:
        return dict(error=float(np.mean(results)))


@OPTIM_WRAPPERS.register_module()
class AmpOnCPU(AmpOptimWrapper):
    """AmpOptimWrapper without its assertion that there is a GPU."""

    def __init__(self, **kwargs) -> None:
        OptimWrapper.__init__(self, **kwargs)
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
        self._scale_update_param = None
        self.cast_dtype = torch.bfloat16
