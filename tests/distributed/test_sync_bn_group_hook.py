# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups through the stock Runner: resolved, pooled, saved."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, EMAHook, Hook
from mmengine.registry import HOOKS
from torch.testing import assert_close

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import SyncBNGroupHook
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.data.tiny_run import config_of, hook_of, train
from tests.distributed.ranks import run_ranks
from tests.tools.command import TINY_CONFIG

# Groups of two ranks with two images each.
RUNS = dict(
    built=dict(model__norm_cfg__bn_size=4),
    overridden=dict(
        model__norm_cfg__bn_size=8, default_hooks__sync_bn_group__bn_size=4
    ),
    # As good as a norm_cfg.
    converted=dict(
        model__norm_cfg=None,
        model_wrapper_cfg=dict(
            type='MegDetDistributedDataParallel', convert_bn=True, bn_size=4
        ),
    ),
)


@HOOKS.register_module(force=True)
class BufferRecorder(Hook):
    """Notes the buffers before or after SyncBNGroupHook has its turn."""

    def __init__(self, early: bool) -> None:
        # Ahead of SyncBuffersHook, which is 'NORMAL', either way.
        self.priority = 'HIGH' if early else 45
        self.seen = []

    def after_train_epoch(self, runner):
        norm = runner.model.module.norm
        self.seen.append(
            torch.stack([norm.running_mean, norm.running_var]).double()
        )


def train_all(rank, world_size, work_dir):
    """Each run's buffers before and after pooling, at each epoch's end."""
    found = {}
    for name, settings in RUNS.items():
        ours = dict(
            log_level='ERROR',
            train_cfg__max_epochs=2,
            train_dataloader__batch_size=2,
            default_hooks__sync_bn_group=dict(type='SyncBNGroupHook'),
            custom_hooks=[
                dict(type='BufferRecorder', early=True),
                dict(type='BufferRecorder', early=False),
                dict(type='SyncBuffersHook'),
                dict(type='EMAHook', momentum=0.5, update_buffers=True),
            ],
        )
        cfg = config_of(TINY_CONFIG, work_dir / name, **ours | settings)
        runner = train(cfg)
        norm = runner.model.module.norm
        # EMAHook copies the model after it was wrapped.
        average = hook_of(runner, EMAHook).ema_model.module.norm
        assert type(norm) is type(average) is MegDetSyncBN
        assert (norm.bn_size, norm.ranks_per_group) == (4, 2)
        recorders = [h for h in runner.hooks if isinstance(h, BufferRecorder)]
        found[name] = [torch.stack(hook.seen) for hook in recorders]
    return found


def test_groups_and_pooled_checkpoints(tmp_path):
    """One line in a config, convert_bn, is as good as a norm_cfg."""
    ranks = run_ranks(train_all, 4, tmp_path)
    for name in RUNS:
        before, after = map(
            torch.stack, zip(*[found[name] for found in ranks], strict=True)
        )
        # The ranks of a group agree before pooling already.
        assert torch.equal(before[::2], before[1::2])
        assert not torch.equal(before[0], before[3])
        # One rounding to float32.
        pooled = before.mean(0).expand_as(after)
        assert_close(after, pooled, rtol=2.0**-24, atol=0)
        assert torch.equal(after, after[:1].expand_as(after))
        saved = torch.load(tmp_path / name / 'epoch_2.pth')
        # EMAHook saves its average as the model's state, and the other way
        # round.
        model, ema = saved['ema_state_dict'], saved['state_dict']
        for place, key in enumerate(['norm.running_mean', 'norm.running_var']):
            buffer = model[f'module.{key}']
            assert torch.equal(buffer.double(), after[0, -1, place])
            assert not torch.equal(ema[key], buffer)
        if name == 'built':
            built = model, ema
        assert_close((model, ema), built, rtol=0, atol=0)


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
