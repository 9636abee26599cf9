# Copyright (c) mmdet_megdet contributors. All rights reserved.
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


NORM = dict(norm_cfg=dict(type='MegDetSyncBN', bn_size=32))


def config(**settings):
    hooks = dict(total_batch=dict(type='TotalBatchHook'), checkpoint=None)
    cfg = dict(model=dict(backbone=NORM, neck=[NORM]), default_hooks=hooks)
    return Config(cfg | dict(train_dataloader={}) | settings)


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
    """What most_images finds, and refusals."""
    cfg = config()
    choose_images(cfg, 12, 64)
    assert cfg.train_dataloader.batch_size == 4
    with pytest.raises(ConfigError, match=r'256 and .* 32 over 24 GPU'):
        choose_images(cfg, 12, 24)
    with pytest.raises(ConfigError, match='TotalBatchHook'):
        choose_images(config(default_hooks={}), 12, 8)
