# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from mmengine.config import Config

from tools import test as tool

LOAD = dict(type='LoadImageFromFile')
PACK = dict(type='PackDetInputs', meta_keys=('img_id',))


def config(**more):
    dataset = dict(type='CocoDataset', pipeline=[LOAD, PACK])
    wrapped = dict(type='RepeatDataset', dataset=dataset)
    return Config(
        dict(
            model=dict(type='MaskRCNN'),
            test_dataloader=dict(dataset=wrapped),
            **more,
        )
    )


def test_tta_defaults():
    cfg = config()
    tool.augment_at_test_time(cfg)
    assert cfg.model.type == 'DetTTAModel'
    assert cfg.model.tta_cfg.nms.iou_threshold == 0.5
    assert cfg.model.module == dict(type='MaskRCNN')
    load, augment = cfg.test_dataloader.dataset.dataset.pipeline
    assert load == LOAD
    flips, (pack,) = augment.transforms
    assert [flip.prob for flip in flips] == [1.0, 0.0]
    assert {'flip', 'flip_direction', 'img_id'} <= set(pack.meta_keys)


def test_tta_of_the_config():
    own = dict(type='OwnTTA', tta_cfg=dict(a=1))
    cfg = config(tta_model=own, tta_pipeline=[LOAD])
    tool.augment_at_test_time(cfg)
    assert cfg.model == dict(own, module=dict(type='MaskRCNN'))
    assert cfg.test_dataloader.dataset.dataset.pipeline == [LOAD]
