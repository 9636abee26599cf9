# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The table of settings in `docs/recipe.md` is the config's."""

from __future__ import annotations

import re

import pytest
from mmengine.config import Config

RECIPE = 'configs/megdet/r50_fpn_256bs.py'


@pytest.fixture
def table(root):
    """Value by setting, as the page has them."""
    page = (root / 'docs' / 'recipe.md').read_text()
    rows = re.findall(r'^\| ([^|]+?) \| ([^|]+?) \| ', page, re.MULTILINE)
    return dict(rows)


def test_settings_are_those_of_the_config(root, table):
    cfg = Config.fromfile(root / RECIPE)
    backbone, optimizer = cfg.model.backbone, cfg.optim_wrapper.optimizer
    warmup, steps = cfg.param_scheduler
    total = cfg.default_hooks.total_batch.total_batch_size
    assert table['total batch'] == f'{total} images'
    assert table['BN statistics'] == f'{backbone.norm_cfg.bn_size} images'
    assert cfg.model.neck.norm_cfg == backbone.norm_cfg
    assert (backbone.norm_eval, backbone.frozen_stages) == (False, -1)
    assert not {'momentum', 'eps'} & backbone.norm_cfg.keys()
    assert table['learning rate'] == f'{optimizer.lr}'
    assert table['warm-up'] == (
        f'linear, {warmup.start_factor} to 1, {warmup.end} updates'
    )
    assert (warmup.type, warmup.count) == ('PreciseLinearWarmup', 'updates')
    first, second = steps.milestones
    assert table['schedule'] == (
        f'{cfg.train_cfg.max_epochs} epochs, a tenth after {first} and '
        f'{second}'
    )
    assert steps.gamma == 0.1
    assert table['optimizer'] == (
        f'{optimizer.type}, momentum {optimizer.momentum}, weight decay 1e-4'
    )
    assert optimizer.weight_decay == 1e-4
    assert table['gradient clip'] == (
        f'norm {cfg.optim_wrapper.clip_grad.max_norm}'
    )
    assert table['timeout'] == f'{cfg.env_cfg.dist_cfg.timeout} s'
    assert table['iteration'] == f'one update, by `{cfg.train_cfg.type}`'
    assert table['epoch'] == f'`{cfg.train_dataloader.batch_sampler.type}`'
    # 458 updates an epoch: tests/configs/test_recipe_plan.py.
    assert 458 * cfg.train_cfg.max_epochs == 10_992
