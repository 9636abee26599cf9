# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A narrow Faster R-CNN that benchmarks train many times on CPUs."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import cv2
import torch
from measuring import ROOT, markdown, parser_of
from mmdet.utils import register_all_modules
from mmengine.config import Config

from mmdet_megdet.arguments import positive
from mmdet_megdet.cli import build_runner
from mmdet_megdet.demo_data import generate_shapes
from mmdet_megdet.errors import NonFiniteLossError

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


def parser_for(
    doc: str, images: tuple[int, int], out: str
) -> argparse.ArgumentParser:
    """Return a parser with the options of trainings on generated images."""
    parser = parser_of(doc, images=images, seeds=[0, 1, 2])
    add = parser.add_argument
    add('--seeds', nargs='+', type=int, help='one training each')
    add(
        '--images',
        nargs=2,
        type=positive,
        metavar=('TRAIN', 'VAL'),
        help='number of generated images',
    )
    add('--out', type=Path, default=Path(out), help='folder of all runs')
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Generate the images, and tell the config where they lie."""
    if torch.cuda.is_available():  # MMEngine would take it
        sys.exit('error: this trains on CPUs: set CUDA_VISIBLE_DEVICES=-1')
    # Ranks, which are forked, need not import it all.
    register_all_modules(init_default_scope=False)
    # Threads are not taken along.
    cv2.setNumThreads(0)
    train, val = args.images
    root = args.out / f'light_{train}_{val}'
    generate_shapes(root, train, val, SIZE, vary_light=True)
    os.environ['SHAPES_ROOT'] = str(root)


def config(
    data: str, folder: Path, epochs: int, settings: dict[str, Any]
) -> Config:
    """Return the config of a run, with settings over those of all runs."""
    cfg = Config.fromfile(ROOT / 'configs' / 'megdet' / f'{data}_r18_fpn.py')
    # Runners of one process share what has the same name.
    name = '_'.join(folder.parts[-3:])
    length = {
        'work_dir': str(folder),
        'experiment_name': name,
        'visualizer.name': name,
        'train_cfg.max_epochs': epochs,
        'train_cfg.val_interval': epochs,
        'param_scheduler.1.end': epochs,
        'param_scheduler.1.milestones': [drop_of(epochs)],
    }
    own = SHAPES if data == 'shapes' else {}
    cfg.merge_from_dict(COMMON | own | length | settings)
    return cfg


def drop_of(epochs: int) -> int:
    """Return the epoch at which the learning rate is divided by 10."""
    return max(1, round(0.75 * epochs))


def train(cfg: Config) -> dict[str, Any]:
    """Make a run; return its AP, which is NaN where it diverged.

    CocoMetric says nothing of a model that detects nothing: its AP is 0.
    """
    runner = build_runner(cfg)
    try:
        runner.train()
    except NonFiniteLossError:
        return dict.fromkeys(METRICS, math.nan)
    logged = runner.message_hub.log_scalars
    found = {name: logged.get(f'val/coco/{name}') for name in METRICS}
    return {n: float(v.current()) if v else 0.0 for n, v in found.items()}


def table(results: Sequence[dict[str, Any]], by: Sequence[str]) -> str:
    """Return a table: AP in per cent, the mean over the seeds and each.

    ``by`` are the facts that tell the ways to train apart.
    """
    ways: dict[tuple, list[dict[str, Any]]] = {}
    for result in results:
        ways.setdefault(tuple(result[k] for k in by), []).append(result)
    rows = []
    for way, runs in ways.items():
        row = dict(zip(by, way, strict=True))
        for metric in METRICS:
            found = [100 * run[metric] for run in runs]
            each = ', '.join(f'{ap:.1f}' for ap in found)
            row[metric] = f'{fmean(found):.1f} ({each})'
        rows.append(row)
    return markdown(rows)


def result_of(
    folder: Path, facts: dict[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the result of a run; make the run if it is not there.

    Finished runs are a line each in the folder's ``runs.jsonl``: the facts
    that tell it from others, and what was found.
    """
    path = folder / 'runs.jsonl'
    lines = path.read_text().splitlines() if path.exists() else []
    for result in map(json.loads, lines):
        if facts.items() <= result.items():
            return result
    result = facts | make()
    folder.mkdir(parents=True, exist_ok=True)
    with path.open('a') as file:
        file.write(json.dumps(result) + '\n')
    return result
