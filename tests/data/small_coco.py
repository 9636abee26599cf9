# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""COCO's configs on a few small images, on a CPU.

The detector's layers stay what they are, but for the width of the RoI heads'
fully connected ones; images, proposals and samples become few.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmdet.datasets import CocoDataset
from mmengine.config import Config

from mmdet_megdet.demo_data import generate_shapes

_COUNT = itertools.count()

# Of whatever part of a model has such a setting.
_FEWER = dict(
    # RoIs that are sampled from each image.
    num=16,
    nms_pre=100,
    max_per_img=8,
    fc_out_channels=64,
    # So that a model that has learned nothing yet has detections.
    score_thr=0.005,
)


def coco_like(folder: Path, side: int, train: int = 24, val: int = 6) -> None:
    """Generate images of so many pixels a side under COCO's names.

    ``folder`` is what ``COCO_ROOT`` is to say; of 24 images one shows no
    object.
    """
    generate_shapes(folder, train=train, val=val, size=(side, side))
    classes = CocoDataset.METAINFO['classes']
    categories = [dict(id=i, name=name) for i, name in enumerate(classes, 1)]
    for split in ('train', 'val'):
        truth = folder / 'annotations' / f'instances_{split}.json'
        content = json.loads(truth.read_text())
        # The shapes' five categories pass for COCO's first five.
        content['categories'] = categories
        truth.with_stem(f'instances_{split}2017').write_text(
            json.dumps(content)
        )
        (folder / f'{split}2017').symlink_to(folder / 'images' / split)


def shrink(
    cfg: Config, data: Path, work_dir: Path, side: int, images: int
) -> None:
    """Make a COCO config train one epoch and predict, in no time, on a CPU.

    On ``data``, which :func:`coco_like` has made, with so many ``images`` per
    GPU. The config is changed in place.
    """
    for part in dicts_in(cfg.model):
        part.update({k: v for k, v in _FEWER.items() if k in part})
        if (part.get('init_cfg') or {}).get('type') == 'Pretrained':
            # Weights from elsewhere cannot be loaded in a test.
            part['init_cfg'] = None
    for name in ('train', 'val', 'test'):
        loader = cfg[f'{name}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.data_root = str(data)
        for part in dicts_in(loader.dataset.pipeline):
            if 'scale' in part:
                part['scale'] = side, side
    cfg.train_dataloader.batch_size = images
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        name = Path(evaluator.ann_file).name
        evaluator.ann_file = str(data / 'annotations' / name)
    cfg.merge_from_dict(
        {
            'work_dir': str(work_dir),
            # Runners of one name would share message hub and logger.
            'experiment_name': f'small_coco_{next(_COUNT)}',
            'log_level': 'ERROR',
            'train_cfg': dict(max_epochs=1, val_interval=1),
            # Never.
            'default_hooks.checkpoint': dict(interval=1000, save_last=False),
            'env_cfg.dist_cfg.timeout': 120,
            'randomness': dict(seed=0),
        }
    )


def dicts_in(node: Any) -> Iterator[dict]:
    """Yield every dict of a config, from the outermost inwards."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list | tuple):
        for item in node:
            yield from dicts_in(item)
