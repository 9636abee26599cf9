# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Two small annotation files, and a config that trains and evaluates them."""

import copy
import json
from pathlib import Path
from typing import Any

from mmengine.config import Config

CLASSES = ('box', 'disc')
WIDTH, HEIGHT = 48, 32


def content_of(images: int = 8, first: int = 0) -> dict:
    """Return a sound file's content: two objects in every image."""
    return dict(
        images=[
            dict(id=i, file_name=f'{i}.jpg', width=WIDTH, height=HEIGHT)
            for i in range(first, first + images)
        ],
        annotations=[
            dict(
                id=100 + 2 * i + k,
                image_id=i,
                category_id=3 + 4 * k,
                bbox=[i % 8 + k, 4, 10, 8],
                area=80,
                iscrowd=0,
                segmentation=[[1, 4, 11, 4, 11.5, 12, 1, 12]],
            )
            for i in range(first, first + images)
            for k in range(2)
        ],
        categories=[dict(id=3, name='box'), dict(id=7, name='disc')],
    )


def config_of(root: Path, with_mask: bool = False, **settings: Any) -> Config:
    """Return a config of the files train.json and val.json in a folder.

    ``settings`` are overrides, with ``__`` for the dots.
    """
    train = dict(
        type='CocoDataset',
        data_root=f'{root}/',
        ann_file='train.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=CLASSES),
        filter_cfg=dict(filter_empty_gt=True, min_size=16),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=with_mask),
        ],
    )
    val = dict(copy.deepcopy(train), ann_file='val.json', test_mode=True)
    evaluator = dict(
        type='CocoMetric',
        ann_file=f'{root}/val.json',
        metric=['bbox', 'segm'] if with_mask else 'bbox',
    )
    cfg = Config(
        dict(
            default_scope='mmdet',
            train_dataloader=dict(dataset=train),
            val_dataloader=dict(dataset=val),
            val_evaluator=evaluator,
        )
    )
    cfg.merge_from_dict({k.replace('__', '.'): v for k, v in settings.items()})
    return cfg


def write(root: Path, **contents: Any) -> None:
    """Write a file for each name."""
    for name, content in contents.items():
        (root / f'{name}.json').write_text(json.dumps(content))
