# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A small detector in float64 whose loss is a plain mean over images."""

from __future__ import annotations

import torch
from mmdet.models import DetDataPreprocessor
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F


@MODELS.register_module()
class DoublePreprocessor(DetDataPreprocessor):
    """Images in float64, for a model in float64."""

    def forward(self, data: dict, training: bool = False) -> dict:
        data = super().forward(data, training)
        data['inputs'] = data['inputs'].double()
        return data


@MODELS.register_module()
class MeanHead(BaseModule):
    """Tells at each point whether it is in a box, and where its sides are.

    mmdet's heads divide by a count of samples plus float32's eps. Here each
    image of a size counts alike, to the last bit but rounding.

    Args:
        in_channels (int): Of each level.
        strides (list[int]): Of the levels.
        train_cfg (dict, optional): Not used.
        test_cfg (dict, optional): Not used.
    """

    def __init__(
        self,
        in_channels: int,
        strides: list[int],
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        self.strides = strides
        self.layer = nn.Conv2d(in_channels, 5, 1)

    def loss(self, levels: tuple[Tensor, ...], samples: list) -> dict:
        """Mean over images, and points of a level."""
        boxes = [sample.gt_instances.bboxes for sample in samples]
        losses = dict(loss_inside=[], loss_sides=[])
        for stride, level in zip(self.strides, levels, strict=True):
            found = self.layer(level)
            sides = torch.stack(
                [_sides(each, found.shape[-2:], stride) for each in boxes]
            )
            inside = (sides.amin(1) > 0).to(found)
            losses['loss_inside'].append(
                F.binary_cross_entropy_with_logits(found[:, 0], inside)
            )
            distance = (found[:, 1:] - sides).abs() * inside[:, None]
            losses['loss_sides'].append(distance.mean())
        return losses


def _sides(boxes: Tensor, shape: torch.Size, stride: int) -> Tensor:
    """Distances from points to the sides of the box that they are deepest in.

    In strides; the smallest is negative outside all boxes.
    """
    y, x = (torch.arange(size).double() + 0.5 for size in shape)
    x1, y1, x2, y2 = (boxes.double() / stride).T[..., None, None]
    x, y = x.expand(*shape), y[:, None].expand(*shape)
    sides = torch.stack([x - x1, y - y1, x2 - x, y2 - y])
    deepest = sides.amin(0).argmax(0)
    return sides.gather(1, deepest.expand(4, 1, *shape)).squeeze(1)
