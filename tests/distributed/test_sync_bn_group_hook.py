# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups through the stock Runner: resolved, pooled, saved."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, EMAHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.testing import assert_close

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import SyncBNGroupHook
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_ranks
from tests.tools.command import TINY_CONFIG

BN_SIZE = 'model.norm_cfg.bn_size'
HOOKS_BN_SIZE = 'default_hooks.sync_bn_group.bn_size'
CONVERTED = {
    'model.norm_cfg': None,
    'model_wrapper_cfg.convert_bn': True,
    'model_wrapper_cfg.bn_size': 4,
}


@HOOKS.register_module(force=True)
class BufferRecorder(Hook):
    """Notes the buffers before or after SyncBNGroupHook has its turn."""

    def __init__(self, early: bool) -> None:
        self.priority = 'HIGH' if early else 'BELOW_NORMAL'
        self.seen = []

    def after_train_epoch(self, runner):
        norm = runner.model.module.norm
        self.seen.append(
            torch.stack([norm.running_mean, norm.running_var]).double()
        )


def train(rank, world_size, work_dir, epochs, *runs):
    """Each run in turn: options, or those of each rank."""
    os.environ['LOCAL_RANK'] = str(rank)
    results = []
    for number, options in enumerate(runs):
        cfg = Config.fromfile(TINY_CONFIG)
        cfg.merge_from_dict(
            {
                'launcher': 'pytorch',
                'log_level': 'ERROR',
                'experiment_name': f'run_{number}',
                'work_dir': f'{work_dir}/{number}',
                'train_cfg.max_epochs': epochs,
                'train_dataloader.batch_size': 2,
                'train_dataloader.num_workers': 0,
                'model_wrapper_cfg.type': 'MegDetDistributedDataParallel',
                'default_hooks.sync_bn_group': dict(type='SyncBNGroupHook'),
                'custom_hooks': [
                    dict(type='BufferRecorder', early=True),
                    dict(type='BufferRecorder', early=False),
                    # Alone it would average variances, after which nothing
                    # is to pool.
                    dict(type='SyncBuffersHook'),
                    dict(type='EMAHook', momentum=0.5, update_buffers=True),
                ],
                **(options if isinstance(options, dict) else options[rank]),
            }
        )
        # It asks compilers for their versions, which takes long.
        with mock.patch('mmengine.runner.runner.collect_env', dict):
            runner = Runner.from_cfg(cfg)
        norm = runner.model.module.norm
        try:
            runner.train()
        except ConfigError as error:
            results.append(str(error))
            continue
        # EMAHook copies the model after it was wrapped.
        (ema,) = (h.ema_model for h in runner.hooks if isinstance(h, EMAHook))
        assert runner.model.module.norm is norm
        assert type(norm) is type(ema.module.norm) is MegDetSyncBN
        seen = [h.seen for h in runner.hooks if isinstance(h, BufferRecorder)]
        results.append((*seen, norm.bn_size, norm.ranks_per_group))
    return results


def test_groups_and_pooled_checkpoints(tmp_path):
    """One line in a config, convert_bn, is as good as a norm_cfg."""
    runs = {BN_SIZE: 4}, CONVERTED
    ranks = run_ranks(train, 4, tmp_path, 2, *runs)
    for number, results in enumerate(zip(*ranks, strict=True)):
        befores, afters, bn_sizes, group_sizes = zip(*results, strict=True)
        assert bn_sizes == (4,) * 4
        assert group_sizes == (2,) * 4
        for before, after in zip(
            zip(*befores, strict=True), zip(*afters, strict=True), strict=True
        ):
            # The ranks of a group agree before pooling already.
            assert torch.equal(before[0], before[1])
            assert torch.equal(before[2], before[3])
            assert not torch.equal(before[0], before[3])
            # One rounding to float32.
            pooled = torch.stack(before).mean(0)
            assert_close(after[0], pooled, rtol=2.0**-24, atol=0)
            assert all(torch.equal(own, after[0]) for own in after)
        saved = torch.load(
            tmp_path / f'{number}/epoch_2.pth', weights_only=False
        )
        # EMAHook saves its average as the model's state, and the other way
        # round.
        model, ema = saved['ema_state_dict'], saved['state_dict']
        for key, buffer in zip(
            ('norm.running_mean', 'norm.running_var'), after[0], strict=True
        ):
            assert torch.equal(model[f'module.{key}'].double(), buffer)
            assert not torch.equal(ema[key], model[f'module.{key}'])
        if number == 0:
            built = model, ema
    assert_close((model, ema), built, rtol=0, atol=0)


def test_what_cannot_be_stops_every_rank(tmp_path):
    """What can be overrides the layers."""
    runs = (
        {BN_SIZE: 4, HOOKS_BN_SIZE: 2},
        {BN_SIZE: 4, HOOKS_BN_SIZE: None},
        {BN_SIZE: 6},
        ({BN_SIZE: 2}, {BN_SIZE: None}),
    )
    for two, everyone, impossible, different in run_ranks(
        train, 2, tmp_path, 1, *runs
    ):
        assert two[2:] == (2, 1)
        assert everyone[2:] == (None, 2)
        what = 'bn_size=6 cannot be had from 2 rank(s) with 2 image(s)'
        assert what in impossible
        assert 'nearest BN sizes are 4;' in impossible
        what = 'bn_size of the layers is [2] on rank 0 and [None] on rank 1'
        assert what in different


def test_sync_bn_in_the_config_is_refused():
    """As if an entry point other than ours had let it pass."""
    runner = SimpleNamespace(cfg=Config(dict(sync_bn='torch')))
    with pytest.raises(ConfigError, match="sync_bn='torch' in the config"):
        SyncBNGroupHook().before_train(runner)


def test_pooling_ahead_of_a_checkpoint_that_counts_iterations(monkeypatch):
    pooled_after = []
    monkeypatch.setattr(
        'mmdet_megdet.hooks.sync_bn_group.pool_running_stats',
        lambda iteration: pooled_after.append(iteration),
    )
    for by_epoch in (False, True):
        hook = SyncBNGroupHook()
        hooks = [CheckpointHook(by_epoch=by_epoch, interval=3), hook]
        for i in range(7):
            hook.after_train_iter(
                SimpleNamespace(iter=i, max_iters=7, hooks=hooks, model=i + 1)
            )
    # Every third, and the last one.
    assert pooled_after == [3, 6, 7]
