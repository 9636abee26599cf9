# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups through the stock Runner: resolved, pooled, saved."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import SyncBNGroupHook
from mmdet_megdet.runtime import adapt_config
from tests.distributed.ranks import run_ranks
from tests.tools.command import TINY_CONFIG

STATS = ('norm.running_mean', 'norm.running_var')


@HOOKS.register_module(force=True)
class BufferRecorder(Hook):
    """Notes the buffers before and after SyncBNGroupHook has its turn."""

    def __init__(self, early: bool) -> None:
        self.priority = 'HIGH' if early else 'BELOW_NORMAL'
        self.seen = []

    def after_train_epoch(self, runner):
        norm = runner.model.module.norm
        self.seen.append(
            torch.stack([norm.running_mean, norm.running_var]).double()
        )


def train(rank, world_size, work_dir, options, sync_bn=None):
    os.environ['LOCAL_RANK'] = str(rank)
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.custom_hooks = [
        dict(type='BufferRecorder', early=True),
        dict(type='BufferRecorder', early=False),
    ]
    cfg.default_hooks.sync_bn_group = dict(type='SyncBNGroupHook')
    cfg.train_cfg.max_epochs = 2
    cfg.train_dataloader.batch_size = 2
    cfg.merge_from_dict(options)
    cfg.custom_hooks += cfg.pop('more_hooks', [])
    cfg.merge_from_dict(
        dict(
            launcher='pytorch',
            work_dir=work_dir,
            log_level='ERROR',
            train_dataloader=dict(num_workers=0),
        )
    )
    runner = Runner.from_cfg(adapt_config(cfg))
    # As if an entry point other than ours had let it pass. (On the CPU DDP
    # refuses what it leads to.)
    runner.cfg.sync_bn = sync_bn
    try:
        runner.train()
    except ConfigError as error:
        return str(error)
    seen = [h.seen for h in runner.hooks if isinstance(h, BufferRecorder)]
    return dict(
        before=seen[0],
        after=seen[1],
        ranks=runner.model.module.norm.ranks_per_group,
        bn_size=runner.model.module.norm.bn_size,
    )


def assert_pooled_at_each_epoch(results):
    for epoch in range(2):
        before = [r['before'][epoch] for r in results]
        assert not torch.equal(before[0], before[-1])
        expected = torch.stack(before).mean(0)
        for result in results:
            after = result['after'][epoch]
            assert torch.equal(after, results[0]['after'][epoch])
            # One rounding to float32.
            error = (after - expected).abs()
            assert (error <= 2.0**-24 * expected.abs()).all()


def test_groups_and_pooled_checkpoints(tmp_path):
    results = run_ranks(train, 4, str(tmp_path), {'model.norm_cfg.bn_size': 4})
    assert [r['ranks'] for r in results] == [2] * 4
    assert_pooled_at_each_epoch(results)
    # The ranks of a group agree before pooling already.
    for first, second in ((0, 1), (2, 3)):
        for epoch in range(2):
            assert torch.equal(
                results[first]['before'][epoch],
                results[second]['before'][epoch],
            )
    state = torch.load(tmp_path / 'epoch_2.pth', weights_only=False)[
        'state_dict'
    ]
    for row, key in enumerate(STATS):
        assert torch.equal(state[key].double(), results[0]['after'][1][row])


def test_the_hook_overrides_the_layers(tmp_path):
    options = {
        'model.norm_cfg.bn_size': 4,
        'default_hooks.sync_bn_group.bn_size': 2,
        'train_cfg.max_epochs': 1,
    }
    for result in run_ranks(train, 2, str(tmp_path), options):
        assert (result['bn_size'], result['ranks']) == (2, 1)
    options['default_hooks.sync_bn_group.bn_size'] = None
    for result in run_ranks(train, 2, str(tmp_path), options):
        assert (result['bn_size'], result['ranks']) == (None, 2)


def train_with_options_by_rank(rank, world_size, work_dir, name, values):
    return train(rank, world_size, work_dir, {name: values[rank]})


@pytest.mark.parametrize(
    ('name', 'values', 'said'),
    [
        (
            'model.norm_cfg.bn_size',
            [6, 6],
            [
                'bn_size=6 cannot be had from 2 rank(s) with 2 image(s)',
                'nearest BN sizes are 4;',
            ],
        ),
        (
            'model.norm_cfg.bn_size',
            [2, None],
            ['bn_size of the layers is [2] on rank 0 and [None] on rank 1'],
        ),
    ],
)
def test_what_cannot_be_stops_every_rank(tmp_path, name, values, said):
    for message in run_ranks(
        train_with_options_by_rank, 2, str(tmp_path), name, values
    ):
        assert all(text in message for text in said), message


def test_sync_bn_in_the_config_is_refused(tmp_path):
    for message in run_ranks(train, 2, str(tmp_path), {}, 'torch'):
        assert "sync_bn='torch' in the config" in message


def test_beside_hooks_that_write_buffers(tmp_path):
    """An EMA copy is pooled too; SyncBuffersHook comes later.

    Alone that one would average variances, after which nothing is to pool.
    """
    options = {
        'model.norm_cfg.bn_size': 2,
        'more_hooks': [
            dict(type='SyncBuffersHook'),
            dict(type='EMAHook', momentum=0.5, update_buffers=True),
        ],
    }
    results = run_ranks(train, 2, str(tmp_path), options)
    assert_pooled_at_each_epoch(results)
    checkpoint = torch.load(tmp_path / 'epoch_2.pth', weights_only=False)
    # EMAHook saves its average as the model's state, and the other way round.
    ema, model = checkpoint['state_dict'], checkpoint['ema_state_dict']
    for row, key in enumerate(STATS):
        after = results[0]['after'][1][row]
        assert torch.equal(model[f'module.{key}'].double(), after)
        assert not torch.equal(ema[key], model[f'module.{key}'])


def test_pooling_ahead_of_a_checkpoint_that_counts_iterations(
    tmp_path, monkeypatch
):
    pooled_after = []

    def note(self, runner):
        pooled_after.append(runner.iter + 1)

    monkeypatch.setattr(SyncBNGroupHook, '_pool', note)

    hook = SyncBNGroupHook()
    hooks = [CheckpointHook(by_epoch=False, interval=3), hook]
    runner = SimpleNamespace(iter=0, max_iters=7, hooks=hooks)
    for runner.iter in range(7):
        hook.after_train_iter(runner, 0)
    # Every third, and the last one.
    assert pooled_after == [3, 6, 7]
    runner.hooks = [CheckpointHook(by_epoch=True, interval=1), hook]
    pooled_after.clear()
    hook.after_train_iter(runner, 0)
    assert pooled_after == []
