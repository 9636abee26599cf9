# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Images in files, and a model of a few weights that fails to order."""

import json
import os
from pathlib import Path

import cv2
import mmdet
import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN

# Where a test says so, rank 1 has another mmdet.
if os.environ.get('UNEQUAL') == os.environ.get('RANK') == '1':
    mmdet.__version__ = '3.2.0'

WIDTH, HEIGHT = 48, 32


def write_images(folder: Path, count: int = 16) -> dict:
    """Write JPEG files and annotations in COCO's format; return those.

    Image i has the id i and is ``images/i.jpg``; its one box has the id
    100 + i and is of category 1 or 2, 'box' or 'disc'.
    """
    (folder / 'images').mkdir(parents=True)
    generator = np.random.default_rng(0)
    for i in range(count):
        image = generator.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        assert cv2.imwrite(str(folder / 'images' / f'{i}.jpg'), image)
    content = dict(
        images=[
            dict(id=i, file_name=f'{i}.jpg', width=WIDTH, height=HEIGHT)
            for i in range(count)
        ],
        annotations=[
            dict(id=100 + i, image_id=i, category_id=1 + i % 2)
            | dict(bbox=[i, 4, 10, 8], area=80, iscrowd=0)
            for i in range(count)
        ],
        categories=[dict(id=1, name='box'), dict(id=2, name='disc')],
    )
    (folder / 'annotations.json').write_text(json.dumps(content))
    return content


@MODELS.register_module()
class TinyDetector(BaseModel):
    """Convolution, MegDetSyncBN, linear head; guesses an image's box.

    ``fault`` is 'pixel' (one is NaN), 'loss' (infinite) or 'memory' (an error
    of CUDA's allocator), on one rank in some training iterations, from 0.
    """

    def __init__(
        self,
        bn_size: int | None = None,
        fault: str | None = None,
        fault_rank: int = 0,
        fault_iterations: tuple[int, ...] = (0,),
        data_preprocessor: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor)
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.norm = MegDetSyncBN(4, bn_size=bn_size)
        self.head = nn.Linear(4, 4)
        self.fault = fault if get_rank() == fault_rank else None
        self.fault_iterations = fault_iterations
        self.iterations = 0

    def forward(
        self, inputs: list, data_samples: list, mode: str = 'tensor'
    ) -> dict:
        assert mode == 'loss'
        struck = self.iterations in self.fault_iterations
        fault = self.fault if struck else None
        self.iterations += 1
        if fault == 'memory':
            raise torch.OutOfMemoryError(
                'CUDA out of memory. Tried to allocate 2.00 GiB.'
            )
        images = torch.stack(inputs).to(self.head.weight.dtype) / 255
        if fault == 'pixel':
            images[0, 0, 0, 0] = float('nan')
        features = self.norm(self.conv(images)).relu().mean((2, 3))
        boxes = [s.gt_instances.bboxes.tensor[0] for s in data_samples]
        error = (self.head(features) - torch.stack(boxes) / WIDTH) ** 2
        losses = dict(
            loss_corner=[error[:, 0].mean(), error[:, 1].mean()],
            loss_size=error[:, 2:].mean(),
            error=torch.full((), float('nan')),  # no loss: not looked at
        )
        if fault == 'loss':
            losses['loss_corner'][1] = losses['loss_corner'][1] / 0
        return losses
