# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
from mmengine.config import Config

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.faults.restart import (
    choose_images,
    planned_batch,
    would_fail_again,
)


def test_statuses():
    # Killed, another rank lost, asked to stop.
    for statuses in ([-9, -15], [69, -15], [75, 75]):
        assert not would_fail_again(statuses)
    # An error of its own, and what it did to the others.
    for statuses in ([69, 1], [2, 2]):
        assert would_fail_again(statuses)


def config(**settings):
    norm = dict(type='MegDetSyncBN', bn_size=32)
    cfg = dict(
        model=dict(backbone=dict(norm_cfg=norm), neck=[dict(norm_cfg=norm)]),
        train_dataloader=dict(batch_size=4),
        default_hooks=dict(
            total_batch=dict(type='TotalBatchHook'), checkpoint=None
        ),
    )
    return Config(cfg | settings)


def test_the_batch_that_a_config_plans():
    assert planned_batch(config()) == (256, [32])
    hook = dict(type='SyncBNGroupHook', bn_size=None)
    assert planned_batch(config(custom_hooks=[hook])) == (256, [None])
    plain = dict(model=dict(norm_cfg=dict(type='BN')))
    assert planned_batch(config(**plain)) == (256, [None])
    wrapper = dict(model_wrapper_cfg=dict(convert_bn=['neck'], bn_size=16))
    assert planned_batch(config(**wrapper)) == (256, [32, 16])
    assert planned_batch(config(**plain, **wrapper)) == (256, [16])
    with pytest.raises(ConfigError, match='TotalBatchHook'):
        planned_batch(config(default_hooks=dict()))


def test_images_are_chosen():
    cfg = config()
    for world_size, images in ((8, 8), (16, 8), (64, 4), (256, 1)):
        choose_images(cfg, 12, world_size)
        assert cfg.train_dataloader.batch_size == images
    with pytest.raises(ConfigError, match=r'256 and .* 32 over 24 GPU'):
        choose_images(cfg, 12, 24)
