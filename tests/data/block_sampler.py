# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the small detector needs to be the same on whatever hardware."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from mmdet.models import DetDataPreprocessor
from mmengine.dist import get_dist_info
from mmengine.registry import DATA_SAMPLERS, MODELS
from torch.utils.data import Dataset, Sampler


@DATA_SAMPLERS.register_module()
class BlockSampler(Sampler):
    """Consecutive images to consecutive ranks, iteration after iteration.

    (MMEngine's ``DefaultSampler`` deals them out one by one, so which images
    share a BN group depends on the number of ranks.)

    Args:
        dataset (Dataset): Its length is a multiple of all ranks' images.
        batch_size (int): Images per GPU.
        seed (int, optional): Not used; the Runner passes one.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int, seed: int | None = None
    ) -> None:
        rank, world_size = get_dist_info()
        blocks = torch.arange(len(dataset)).view(-1, world_size, batch_size)
        self.indices = blocks[:, rank].flatten().tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def set_epoch(self, epoch: int) -> None:
        """Every epoch is the same."""


@MODELS.register_module()
class DoublePreprocessor(DetDataPreprocessor):
    """Images in float64, for a model in float64."""

    def forward(self, data: dict, training: bool = False) -> dict:
        data = super().forward(data, training)
        data['inputs'] = data['inputs'].double()
        return data
