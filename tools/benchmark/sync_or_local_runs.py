# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The runs of bench_sync_or_local.py: their settings and how they are made."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import mmdet
import torch
from bench_ranks import run_ranks
from mmengine.config import Config
from mmengine.dist import get_rank

from mmdet_megdet.cli import build_runner

CONFIGS = Path(__file__).resolve().parents[2] / 'configs' / 'megdet'
SIZE = (96, 96)
BCCD_SIZE = (192, 144)
BCCD_IMAGES = 200

# Small, since many ranks share few cores: narrow layers, no fourth stage (a
# few pixels wide here), few proposals, no workers. One optimizer for both.
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
EPOCHS = {'shapes': 8, 'bccd': 5}
CONFIG_OF = {'shapes': 'shapes_r18_fpn.py', 'bccd': 'bccd_r18_fpn.py'}
OVERRIDES = {
    'shapes': {
        # Its Mask R-CNN, without masks.
        'model.type': 'FasterRCNN',
        'model.roi_head.mask_roi_extractor': None,
        'model.roi_head.mask_head': None,
        'train_dataloader.dataset.pipeline.1.with_mask': False,
        'train_dataloader.dataset.pipeline.2.scale': SIZE,
        'val_dataloader.dataset.pipeline.1.scale': SIZE,
        'val_dataloader.dataset.pipeline.2.with_mask': False,
        'val_evaluator.metric': 'bbox',
    },
    'bccd': {
        'train_dataloader.dataset.pipeline.2.scale': BCCD_SIZE,
        'val_dataloader.dataset.pipeline.1.scale': BCCD_SIZE,
        # Of 205, so that all ranks make whole updates only.
        'train_dataloader.dataset.indices': BCCD_IMAGES,
    },
}
# By arm: whether the images of an update are spread over ranks, and the
# number of images of which BatchNorm takes its statistics (None: all).
ARMS = {'synced': (True, None), 'local': (True, 1), 'single': (False, None)}


class Run:
    """One training.

    Args:
        data (str): Key of ``CONFIG_OF``.
        arm (str): Key of ``ARMS``.
        seed (int): Its seed.
        args (argparse.Namespace): The command line.
    """

    def __init__(
        self, data: str, arm: str, seed: int, args: argparse.Namespace
    ) -> None:
        spread, bn_size = ARMS[arm]
        self.facts = dict(data=data, arm=arm, seed=seed)
        self.name = f'{data}, {arm}, seed {seed}'
        self.folder = args.out / data / arm / f'seed{seed}'
        self.ranks = args.ranks if spread else 1
        epochs = args.epochs or EPOCHS[data]
        self.cfg = Config.fromfile(CONFIGS / CONFIG_OF[data])
        settings = {
            'launcher': 'pytorch',
            'work_dir': str(self.folder),
            'randomness.seed': seed,
            'train_dataloader.batch_size': args.ranks // self.ranks,
            'default_hooks.total_batch.total_batch_size': args.ranks,
            'default_hooks.sync_bn_group.bn_size': bn_size,
            'train_cfg.max_epochs': epochs,
            'train_cfg.val_interval': epochs,
            'param_scheduler.1.end': epochs,
            'param_scheduler.1.milestones': [max(1, round(0.75 * epochs))],
        }
        self.cfg.merge_from_dict(COMMON | OVERRIDES[data] | settings)

    def settings(self) -> dict:
        """What decides the result, as JSON has it."""
        config = json.loads(json.dumps(self.cfg.to_dict(), default=str))
        del config['work_dir']
        return dict(ranks=self.ranks, config=config)

    def finished(self) -> dict | None:
        """The result, if the run was made before.

        Raises:
            ValueError: If it was made with other settings.
        """
        path = self.folder / 'result.json'
        if not path.exists():
            return None
        result = json.loads(path.read_text())
        if result['settings'] != self.settings():
            raise ValueError(
                f'{path} is the result of other settings: --ranks, --epochs, '
                '--images, where the data set lies, or the config itself. '
                'Choose another --out, or remove the file to make the run '
                'anew.'
            )
        return result

    def make(self) -> dict:
        """Trains, and keeps the result in the run's folder.

        Returns:
            dict: ``data``, ``arm``, ``seed``, ``metrics``, ``seconds``,
            ``versions`` and ``settings``.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        metrics = run_ranks(train, self.ranks, 'cpu', 1, self.cfg)
        result = self.facts | dict(
            metrics=metrics,
            seconds=round(time.monotonic() - start),
            versions=dict(torch=torch.__version__, mmdet=mmdet.__version__),
            settings=self.settings(),
        )
        partial = self.folder / 'result.json.partial'
        partial.write_text(json.dumps(result, indent=1))
        os.replace(partial, self.folder / 'result.json')
        return result


def train(device: torch.device, cfg: Config) -> dict[str, float]:
    """Trains by the stock Runner; called on every rank.

    Returns:
        dict[str, float]: The validation's metrics after the last epoch.
    """
    del device  # the Runner's own choice is the same
    rank = get_rank()
    os.environ['LOCAL_RANK'] = str(rank)  # the Runner asks for it
    with Path(cfg.work_dir, f'rank{rank}.log').open('w') as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    runner = build_runner(cfg)
    runner.train()
    prefix = 'val/coco/'
    return {
        name.removeprefix(prefix): float(scalar.current())
        for name, scalar in runner.message_hub.log_scalars.items()
        if name.startswith(prefix)
    }
