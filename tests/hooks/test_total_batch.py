# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The optimizer's batch under MMEngine's own loops, on one process.

The data set has 32 images and the run four epochs: 4 images at once and 16
an update make 8 micro-batches and 2 updates an epoch.
"""

import pytest
import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import (
    by_iteration,
    log_of,
    tiny_config,
    train_tiny,
)


def refusal(cfg, begun=0):
    """What the run is stopped with before its first iteration."""
    runner = Runner.from_cfg(adapt_config(cfg))
    with pytest.raises(ConfigError) as error:
        runner.train()
    assert runner.iter == begun
    return str(error.value)


def test_the_optimizer_sees_the_total_batch(tmp_path):
    """As with the same accumulation set by hand, bit for bit."""
    cfg = tiny_config(tmp_path, total=16, images=4)
    runner, updates = train_tiny(cfg)
    assert updates.iterations == [4, 8, 12, 16, 20, 24, 28, 32]
    log = log_of(tmp_path)
    assert log.split('TotalBatchHook:\n')[1].splitlines()[3:9] == [
        'accumulation    4 micro-steps',
        'total batch     16 images',
        'BN statistics   4 images',
        'BN groups       BN is local',
        'epoch           8 micro-batches',
        'warm-up         10 updates',
    ]
    assert 'under EpochBasedTrainLoop an iteration is a micro-batch, 4' in log
    by_hand = dict(optim_wrapper__accumulative_counts=4)
    by_hand['default_hooks__total_batch'] = None
    same, _ = train_tiny(tiny_config(tmp_path / 'by_hand', 16, 4, **by_hand))
    states = (each.model.state_dict() for each in (runner, same))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_with_plain_batch_norm(tmp_path):
    # What the hook needs too is no contradiction.
    counts = dict(optim_wrapper__accumulative_counts=4)
    cfg = tiny_config(tmp_path, 16, 4, model__norm_cfg=None, **counts)
    _, updates = train_tiny(cfg)
    assert updates.iterations == [4, 8, 12, 16, 20, 24, 28, 32]
    assert 'BN groups       no MegDetSyncBN layer' in log_of(tmp_path)


BY_ITERATION = by_iteration(12) | dict(
    default_hooks__checkpoint__by_epoch=False,
    val_dataloader=None,
    val_cfg=None,
    val_evaluator=None,
)


def test_iterations_that_are_updates(tmp_path):
    _, updates = train_tiny(tiny_config(tmp_path, 4, 4, **BY_ITERATION))
    assert updates.iterations == list(range(1, 13))


@pytest.mark.parametrize(('total', 'images', 'settings', 'messages'), [
    (16, 3, {},
     ['3 at once do not divide a total batch of 16 (16 = 5 x 3 + 1). '
      'Nothing is rounded. What would run, least changed first: '
      '--images-per-gpu 4; or total_batch_size=15.']),
    (0, 4, {}, ['total_batch_size=0 must be a positive int']),
    (16, 4, dict(default_hooks__sync_bn_group__bn_size=8),
     ['cannot give a BN size of 8']),
    (16, 4, dict(optim_wrapper__accumulative_counts=2),
     ['accumulative_counts=2 contradicts TotalBatchHook, which needs 4 for '
      '16 images with 4 at once']),
    (16, 4, dict(auto_scale_lr=dict(enable=True, base_batch_size=16)),
     ['ignores accumulative_counts=4']),
    (16, 4, BY_ITERATION,
     ['max_iters=12 would be 3 updates',
      "train_cfg=dict(type='UpdateTrainLoop', max_upd"]),
])  # fmt: skip
def test_refusals(tmp_path, total, images, settings, messages):
    said = refusal(tiny_config(tmp_path, total, images, **settings))
    assert all(message in said for message in messages)


def test_several_optimizers_are_refused(tmp_path):
    cfg = tiny_config(tmp_path, 16, 4, param_scheduler=None)
    runner = Runner.from_cfg(adapt_config(cfg))
    one = OptimWrapper(torch.optim.SGD(runner.model.parameters(), lr=0.1))
    runner.optim_wrapper = OptimWrapperDict(conv=one, head=one)
    with pytest.raises(ConfigError, match='one optimizer, not with conv, hea'):
        runner.train()


@pytest.mark.parametrize('task', ['val', 'test'])
def test_evaluation_does_not_ask(tmp_path, task):
    # MMEngine cannot evaluate alone with save_best.
    cfg = tiny_config(tmp_path, 1, 4, default_hooks__checkpoint=None)
    assert 'error' in getattr(Runner.from_cfg(cfg), task)()


def test_resumed_on_the_same_hardware_alone(tmp_path):
    two_epochs = dict(train_cfg__max_epochs=2)

    def resumed(images):
        start = dict(load_from=str(tmp_path / 'epoch_2.pth'), resume=True)
        return tiny_config(tmp_path / 'then', 16, images, **start)

    train_tiny(tiny_config(tmp_path, 16, 4, **two_epochs))
    _, updates = train_tiny(resumed(4))
    assert updates.iterations == [20, 24, 28, 32]
    message = refusal(resumed(8), begun=16)
    assert (
        'was trained otherwise (images_per_gpu=4 -> 8, '
        'iterations_per_epoch=8 -> 4). Resume with what it was trained with'
    ) in message
    assert "train_cfg.type='UpdateTrainLoop' goes on on any" in message
    # Nor from a run without the hook.
    two_epochs['default_hooks__total_batch'] = None
    train_tiny(tiny_config(tmp_path, 16, 4, **two_epochs))
    assert 'counts=None -> micro-batches' in refusal(resumed(4), begun=16)
