# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What every config under configs/megdet is for."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from math import cos, pi

from mmengine.config import Config

from tests.conftest import ROOT

CONFIGS = ROOT / 'configs' / 'megdet'

LINEAR = {0: 0.001, 250: 0.25075, 500: 0.5005, 1000: 1}
EPOCHS_24 = {1599: 1, 1600: 0.1, 2199: 0.1, 2200: 0.01, 2399: 0.01}


@dataclass(frozen=True)
class Expected:
    """What a config is for; the defaults are r50_fpn_256bs.py's."""

    detector: str = 'CascadeRCNN'
    masks: bool = True
    # By part of the model, all MegDetSyncBN: ResNet-50's, and those of four
    # lateral and four output convolutions.
    norms: dict = field(default_factory=lambda: dict(backbone=53, neck=8))
    # eps and momentum by part of the model, where not PyTorch's defaults.
    kinds: dict = field(default_factory=dict)
    images: int = 4  # per GPU
    total: int = 256
    bn_size: int | None = 32
    lr: float = 0.04
    updates: int = 100  # of an epoch, for the factors
    # Of the learning rate, by update.
    factors: dict = field(default_factory=lambda: LINEAR | EPOCHS_24)
    optimizer: str = 'SGD'
    wrapper: str = 'OptimWrapper'
    clip: float = 35
    with_cp: bool = False


RECIPE = Expected()
SMALL = Expected(norms=dict(backbone=20, neck=8), total=8, bn_size=None)
RETINANET = replace(
    RECIPE,
    detector='RetinaNet',
    masks=False,
    # The FPN begins one level later, and has two more at its end.
    norms=dict(backbone=53, neck=3 + 5),
)
TABLE = {
    'r50_fpn_256bs': RECIPE,
    'r50_fpn_256bs_amp': replace(RECIPE, wrapper='AmpOptimWrapper'),
    'r50_fpn_256bs_recompute': replace(RECIPE, with_cp=True),
    # The linear rule from 0.02 for 16 images.
    'r50_fpn_256bs_lr0.32': replace(RECIPE, lr=0.02 * 256 / 16),
    # MLPerf's: in updates, with COCO's epochs.
    'r50_fpn_256bs_lr0.24': replace(
        RECIPE,
        lr=0.24,
        updates=458,
        factors={0: 0.0025, 900: 0.50125, 1800: 1, 5624: 1}
        | {5625: 0.1, 7499: 0.1, 7500: 0.01, 8243: 0.01},
    ),
    # 0.02 (1 + 830 / 16) / (1 + 830 / 512), rounded down.
    'r50_fpn_512bs': replace(
        RECIPE,
        total=512,
        lr=0.4,
        factors={0: 0.0025, 450: 0.50125, 900: 1, 1499: 1}
        | {1500: 0.1, 1999: 0.1, 2000: 0.01, 2199: 0.01},
    ),
    'r50_fpn_256bs_localbn': replace(RECIPE, bn_size=4, clip=10),
    'r50_fpn_256bs_cosine-warmup': replace(
        RECIPE,
        factors=RECIPE.factors | {250: 0.001 + 0.999 * (1 - cos(pi / 4)) / 2},
    ),
    'r50_fpn_256bs_small-objects': replace(
        RECIPE,
        factors=EPOCHS_24 | {0: 0.01, 1: 0.01, 500: 0.01, 750: 0.505, 1000: 1},
    ),
    'r50_fpn_16bs': replace(RECIPE, images=2, total=16, bn_size=16, lr=0.02),
    'faster-rcnn_r50_fpn_256bs': replace(
        RECIPE, detector='FasterRCNN', masks=False
    ),
    'mask-rcnn_r50_fpn_256bs': replace(RECIPE, detector='MaskRCNN'),
    'retinanet_r50_fpn_256bs': RETINANET,
    'retinanet_effb3_fpn_256bs': replace(
        RETINANET,
        # The stem and three in each of 26 blocks, but for two that do not
        # expand; none after lateral convolutions; 4 + 4 for each of five
        # levels.
        norms=dict(backbone=1 + 24 * 3 + 2 * 2, neck=5, bbox_head=8 * 5),
        # TensorFlow's epsilon, and 1 - its momentum of 0.99.
        kinds=dict(backbone=(1e-3, 0.01)),
    ),
    'x101_fpn_256bs': replace(
        RECIPE,
        norms=dict(backbone=104, neck=8),
        factors=EPOCHS_24 | {0: 0.001, 750: 0.5005, 1000: 0.667, 1500: 1},
    ),
    'shapes_r18_fpn': replace(
        SMALL,
        detector='MaskRCNN',
        optimizer='AdamW',
        lr=0.001,
        factors={0: 0.001, 20: 0.5005, 40: 1, 299: 1, 300: 0.1, 399: 0.1},
    ),
    'bccd_r18_fpn': replace(
        SMALL,
        detector='FasterRCNN',
        masks=False,
        lr=0.02,
        factors={0: 0.001, 25: 0.5005, 50: 1, 799: 1, 800: 0.1, 1199: 0.01},
    ),
}


@cache
def _load(name: str) -> Config:
    # MMEngine reads all of mmdet's model index for every `mmdet::` base.
    return Config.fromfile(CONFIGS / f'{name}.py')


def load(name: str) -> Config:
    """A config of its own, to change as one likes."""
    return deepcopy(_load(name))
