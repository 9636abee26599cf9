# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A converted model on several gloo ranks, by MMEngine's Runner."""

from __future__ import annotations

import os

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import EMAHook
from mmengine.runner import Runner

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_ranks
from tests.tools.command import TINY_CONFIG

CONVERT = {
    'model.norm_cfg': None,
    'model_wrapper_cfg.convert_bn': True,
    'model_wrapper_cfg.bn_size': 8,
}
BUILT = {'model.norm_cfg.bn_size': 8}


def stock_runner(work_dir, options):
    """MMEngine's Runner from a config, without any tool of this package."""
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.merge_from_dict(
        {
            'launcher': 'pytorch',
            'work_dir': work_dir,
            'log_level': 'ERROR',
            'train_cfg.max_epochs': 1,
            'model_wrapper_cfg.type': 'MegDetDistributedDataParallel',
            'custom_hooks': [dict(type='EMAHook', update_buffers=True)],
            'default_hooks.sync_bn_group': dict(type='SyncBNGroupHook'),
            **options,
        }
    )
    return Runner.from_cfg(cfg)


def train(rank, world_size, work_dir):
    """Train a model that was built of our layers, and a converted one."""
    os.environ['LOCAL_RANK'] = str(rank)
    states = []
    for options in (BUILT, CONVERT):
        options['experiment_name'] = f'run_{len(states)}'
        runner = stock_runner(work_dir, options)
        layer = runner.model.module.norm
        runner.train()
        # EMAHook copies the model after it was wrapped.
        (hook,) = (h for h in runner.hooks if isinstance(h, EMAHook))
        for norm in (runner.model.module.norm, hook.ema_model.module.norm):
            assert type(norm) is MegDetSyncBN
        assert runner.model.module.norm is layer
        assert (layer.bn_size, layer.ranks_per_group) == (8, 2)
        states.append(
            {
                **runner.model.state_dict(),
                **hook.ema_model.state_dict(prefix='ema.'),
            }
        )
    # MMEngine's sync_bn replaces MegDetSyncBN before the wrapper sees it.
    with pytest.raises(ValueError, match='SyncBatchNorm'):
        stock_runner(work_dir, {'sync_bn': 'torch', 'experiment_name': 'sync'})
    return states


def test_one_line_in_a_config_is_as_good_as_a_norm_cfg(tmp_path):
    results = run_ranks(train, 2, str(tmp_path))
    (built, converted), other = results
    assert list(built) == list(converted)
    for name, value in built.items():
        assert torch.equal(value, converted[name]), name
        assert torch.equal(other[1][name], converted[name]), name
