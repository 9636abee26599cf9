# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The full 256/32 recipe, planned without training."""

from __future__ import annotations

import pytest
from mmengine.config import Config

import mmdet_megdet  # noqa: F401  lets configs be found
from mmdet_megdet.recipe import BatchPlan, PlanError, plan_rows
from tests.conftest import ROOT

CONFIGS = ROOT / 'configs' / 'megdet'


@pytest.fixture(scope='module')
def recipe():
    return Config.fromfile(CONFIGS / 'r50_fpn_256bs.py')


def bn_sizes(node):
    """Every bn_size of the model's norm layers."""
    if isinstance(node, list | tuple):
        return {size for item in node for size in bn_sizes(item)}
    if not isinstance(node, dict):
        return set()
    own = {node.get('bn_size')} if node.get('type') == 'MegDetSyncBN' else ()
    return {size for item in node.values() for size in bn_sizes(item)} | {*own}


def plan_of(cfg, gpus, images=None):
    (size,) = bn_sizes(cfg.model)
    return BatchPlan(
        gpus,
        images or cfg.train_dataloader.batch_size,
        cfg.default_hooks.total_batch.total_batch_size,
        size,
    )


def test_batch_and_bn_size(recipe):
    plan = plan_of(recipe, 8)
    assert plan == BatchPlan(8, 4, total_batch_size=256, bn_size=32)
    assert plan.accumulation == 8
    assert recipe.default_hooks.total_batch.type == 'TotalBatchHook'
    assert recipe.default_hooks.sync_bn_group.type == 'SyncBNGroupHook'
    assert 'accumulative_counts' not in recipe.optim_wrapper


def test_warmup_is_1000_updates(recipe):
    warmup = recipe.param_scheduler[0]
    assert warmup.type == 'PreciseLinearWarmup'
    assert warmup.count == 'updates'
    assert (warmup.begin, warmup.end) == (0, 1000)


@pytest.mark.parametrize(
    ('gpus', 'images'), [(8, 4), (4, 8), (8, 8), (16, 4), (128, 2)]
)
def test_an_epoch_of_coco_is_458_updates(recipe, gpus, images):
    plan = plan_of(recipe, gpus, images)
    sampler = recipe.train_dataloader.batch_sampler
    assert sampler.type == 'UpdateBatchSampler'
    assert recipe.train_cfg.type == 'UpdateTrainLoop'
    assert plan_rows(plan, 117266)['epoch'] == '458 updates, 18 images over'


def test_six_gpus_cannot_hold_the_recipe(recipe):
    with pytest.raises(PlanError, match='do not divide a total batch of 256'):
        plan_of(recipe, 6)
