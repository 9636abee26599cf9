# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A narrow detector that benchmarks train many times on CPUs."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import torch
from measuring import ROOT, positive
from mmengine.runner import Runner

from mmdet_megdet.demo_data import generate_shapes

CONFIGS = ROOT / 'configs' / 'megdet'
SIZE = (96, 96)
METRICS = ('bbox_mAP', 'bbox_mAP_50')

# Small, since many ranks share few cores: narrow layers, no fourth stage (a
# few pixels wide here), few proposals, no workers.
COMMON = {
    'model.backbone.base_channels': 16,
    'model.backbone.num_stages': 3,
    'model.backbone.strides': (1, 2, 2),
    'model.backbone.dilations': (1, 1, 1),
    'model.backbone.out_indices': (0, 1, 2),
    'model.neck.in_channels': [16, 32, 64],
    'model.neck.out_channels': 32,
    'model.neck.num_outs': 4,
    'model.rpn_head.in_channels': 32,
    'model.rpn_head.feat_channels': 32,
    'model.rpn_head.anchor_generator.strides': [4, 8, 16, 32],
    'model.roi_head.bbox_roi_extractor.out_channels': 32,
    'model.roi_head.bbox_roi_extractor.featmap_strides': [4, 8, 16],
    'model.roi_head.bbox_head.in_channels': 32,
    'model.roi_head.bbox_head.fc_out_channels': 128,
    'model.train_cfg.rpn.sampler.num': 64,
    'model.train_cfg.rpn_proposal.nms_pre': 200,
    'model.train_cfg.rpn_proposal.max_per_img': 100,
    'model.train_cfg.rcnn.sampler.num': 64,
    'model.test_cfg.rpn.nms_pre': 200,
    'model.test_cfg.rpn.max_per_img': 100,
    'optim_wrapper.optimizer': dict(
        _delete_=True, type='AdamW', lr=2e-3, weight_decay=1e-4
    ),
    'param_scheduler.0.end': 20,
    'train_dataloader.num_workers': 0,
    'train_dataloader.persistent_workers': False,
    'val_dataloader.num_workers': 0,
    'val_dataloader.persistent_workers': False,
    'default_hooks.checkpoint': None,
    'default_hooks.bn_stats.interval': 10,
}
# Over shapes_r18_fpn.py: its Mask R-CNN, without masks.
SHAPES = {
    'model.type': 'FasterRCNN',
    'model.roi_head.mask_roi_extractor': None,
    'model.roi_head.mask_head': None,
    'train_dataloader.dataset.pipeline.1.with_mask': False,
    'train_dataloader.dataset.pipeline.2.scale': SIZE,
    'val_dataloader.dataset.pipeline.1.scale': SIZE,
    'val_dataloader.dataset.pipeline.2.with_mask': False,
    'val_evaluator.metric': 'bbox',
}


def add_options(
    parser: argparse.ArgumentParser, images: tuple[int, int], out: str
) -> None:
    """Add the options of benchmarks that train on generated images."""
    add = parser.add_argument
    parser.set_defaults(images=images, seeds=[0, 1, 2])
    add('--seeds', nargs='+', type=int, help='one training each')
    add(
        '--images',
        nargs=2,
        type=positive,
        metavar=('TRAIN', 'VAL'),
        help='number of generated images',
    )
    add('--out', type=Path, default=Path(out), help='folder of all runs')


def check_no_gpu(parser: argparse.ArgumentParser) -> None:
    """Refuse a machine on which MMEngine would not train on the CPU."""
    if torch.cuda.is_available():
        parser.error(
            'this trains on the CPU, but MMEngine would choose the GPU of '
            'this machine: set CUDA_VISIBLE_DEVICES=-1'
        )


def prepare_images(args: argparse.Namespace) -> None:
    """Generate the images, and tell the config where they lie."""
    train, val = args.images
    root = args.out / f'light_{train}_{val}'
    # Ranks are forked, and threads are not taken along.
    cv2.setNumThreads(0)
    generate_shapes(root, train, val, SIZE, vary_light=True)
    os.environ['SHAPES_ROOT'] = str(root)


def average_precisions(runner: Runner) -> dict[str, float]:
    """Return the metrics of a training's last validation.

    CocoMetric says nothing of a model that detects nothing: its AP is 0.
    """
    found = {
        name: runner.message_hub.log_scalars.get(f'val/coco/{name}')
        for name in METRICS
    }
    return {n: float(v.current()) if v else 0.0 for n, v in found.items()}


class Results:
    """Finished runs: a line each in ``runs.jsonl``, none made again.

    Args:
        folder (Path): Where the file lies.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / 'runs.jsonl'
        self.done: list[dict[str, Any]] = []
        if self.path.exists():
            lines = self.path.read_text().splitlines()
            self.done = [json.loads(line) for line in lines]

    def get(
        self, facts: dict[str, Any], make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the result of a run; make the run if it is not there.

        Args:
            facts (dict[str, Any]): What tells the run from others, as JSON.
            make (Callable): Makes it; gives what it found.
        """
        for result in self.done:
            if all(same(result.get(k), value) for k, value in facts.items()):
                return result
        result = facts | make()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open('a') as file:
            file.write(json.dumps(result) + '\n')
        self.done.append(result)
        return result


def same(one: object, other: object) -> bool:
    """Return whether two facts are equal, floats but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other)
    return one == other
