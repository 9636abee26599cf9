# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
from mmengine.config import Config

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.faults import (
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
    total_batch = dict(type='TotalBatchHook')
    cfg = dict(
        model=dict(backbone=dict(norm_cfg=norm), neck=[dict(norm_cfg=norm)]),
        train_dataloader=dict(batch_size=4),
        default_hooks=dict(total_batch=total_batch, checkpoint=None),
    )
    return Config(cfg | settings)


PLAIN = dict(model=dict(norm_cfg=dict(type='BN')))
WRAPPER = dict(model_wrapper_cfg=dict(convert_bn=['neck'], bn_size=16))
OF_ALL = dict(custom_hooks=[dict(type='SyncBNGroupHook', bn_size=None)])


@pytest.mark.parametrize(('settings', 'bn_sizes'), [
    ({}, [32]), (OF_ALL, [None]), (PLAIN, [None]), (WRAPPER, [32, 16]),
    (PLAIN | WRAPPER, [16]),
])  # fmt: skip
def test_the_batch_that_a_config_plans(settings, bn_sizes):
    assert planned_batch(config(**settings)) == (256, bn_sizes)


def test_images_are_chosen():
    cfg = config()
    for world_size, images in ((8, 8), (16, 8), (64, 4), (256, 1)):
        choose_images(cfg, 12, world_size)
        assert cfg.train_dataloader.batch_size == images
    with pytest.raises(ConfigError, match=r'256 and .* 32 over 24 GPU'):
        choose_images(cfg, 12, 24)
    with pytest.raises(ConfigError, match='TotalBatchHook'):
        choose_images(config(default_hooks={}), 12, 8)
