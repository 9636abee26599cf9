# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The optimizer's batch under MMEngine's own loops, on one process.

The data set has 32 images and the run four epochs: 4 images at once and 16
an update make 8 micro-batches and 2 updates an epoch.
"""

from __future__ import annotations

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.runner import Runner

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import log_of, tiny_config, train_tiny


@OPTIM_WRAPPER_CONSTRUCTORS.register_module(force=True)
class OneForEachPart:
    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        pass

    def __call__(self, model):
        return OptimWrapperDict(
            **{
                name: OptimWrapper(
                    torch.optim.SGD(getattr(model, name).parameters(), lr=0.1)
                )
                for name in ('conv', 'head')
            }
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
    assert log.split('TotalBatchHook:\n')[1].splitlines()[:9] == [
        'GPUs            1',
        'images per GPU  4',
        'images at once  4',
        'accumulation    4 micro-steps',
        'total batch     16 images',
        'BN statistics   4 images',
        'BN groups       BN is local',
        'epoch           8 micro-batches',
        'warm-up         10 updates',
    ]
    assert 'under EpochBasedTrainLoop an iteration is a micro-batch, 4' in log
    by_hand = Config.fromfile(cfg.filename)
    by_hand.merge_from_dict(
        dict(
            cfg.to_dict(),
            work_dir=str(tmp_path / 'by_hand'),
            experiment_name='by_hand',
        )
    )
    del by_hand.default_hooks['total_batch']
    by_hand.optim_wrapper.accumulative_counts = 4
    same, _ = train_tiny(by_hand)
    for name, weight in runner.model.state_dict().items():
        assert torch.equal(same.model.state_dict()[name], weight), name


def test_with_plain_batch_norm(tmp_path):
    cfg = tiny_config(
        tmp_path,
        16,
        4,
        model__norm_cfg=None,
        # What the hook needs too is no contradiction.
        optim_wrapper__accumulative_counts=4,
    )
    _, updates = train_tiny(cfg)
    assert updates.iterations == [4, 8, 12, 16, 20, 24, 28, 32]
    assert 'BN groups       no MegDetSyncBN layer' in log_of(tmp_path)


@pytest.mark.parametrize(
    ('total', 'images', 'settings', 'message'),
    [
        (
            16,
            3,
            {},
            '3 at once do not divide a total batch of 16 (16 = 5 x 3 + 1). '
            'Nothing is rounded. What would run, least changed first: '
            '--images-per-gpu 4; or --cfg-options '
            'default_hooks.total_batch.total_batch_size=15.',
        ),
        (0, 4, {}, 'total_batch_size=0 must be a positive int'),
        (
            16,
            4,
            dict(default_hooks__sync_bn_group__bn_size=8),
            'cannot give a BN size of 8',
        ),
        (
            16,
            4,
            dict(optim_wrapper__accumulative_counts=2),
            'accumulative_counts=2 contradicts TotalBatchHook, which needs 4 '
            'for 16 images with 4 at once',
        ),
        (
            16,
            4,
            dict(auto_scale_lr=dict(enable=True, base_batch_size=16)),
            'ignores accumulative_counts=4',
        ),
        (
            16,
            4,
            dict(
                optim_wrapper=dict(constructor='OneForEachPart'),
                param_scheduler=None,
            ),
            'TotalBatchHook works with one optimizer, not with conv, head',
        ),
    ],
)
def test_refusals(tmp_path, total, images, settings, message):
    assert message in refusal(tiny_config(tmp_path, total, images, **settings))


@pytest.mark.parametrize('task', ['val', 'test'])
def test_evaluation_does_not_ask(tmp_path, task):
    # MMEngine cannot evaluate alone with save_best.
    plain = dict(_delete_=True, type='CheckpointHook')
    cfg = tiny_config(tmp_path, 1, 4, default_hooks__checkpoint=plain)
    runner = Runner.from_cfg(cfg)
    assert 'error' in getattr(runner, task)()


def iteration_based(work_dir, total, **settings):
    """12 iterations, with what needs no epochs."""
    cfg = tiny_config(
        work_dir,
        total,
        4,
        train_cfg=dict(_delete_=True, by_epoch=False, max_iters=12),
        train_dataloader__sampler__type='InfiniteSampler',
        default_hooks__checkpoint=dict(
            _delete_=True, type='CheckpointHook', by_epoch=False, interval=4
        ),
        val_dataloader=None,
        val_cfg=None,
        val_evaluator=None,
        **settings,
    )
    cfg.param_scheduler = cfg.param_scheduler[:1]
    return cfg


def test_iterations(tmp_path):
    """They are refused unless they are updates."""
    message = refusal(iteration_based(tmp_path, 16))
    assert 'max_iters=12 would be 3 updates' in message
    assert "train_cfg=dict(type='UpdateTrainLoop', max_updates=..." in message
    _, updates = train_tiny(iteration_based(tmp_path, 4))
    assert updates.iterations == list(range(1, 13))


def resumed(work_dir, total, images, start, **settings):
    return tiny_config(
        work_dir,
        total,
        images,
        load_from=str(start),
        resume=True,
        **settings,
    )


def test_resumed_on_the_same_hardware_alone(tmp_path):
    first, then = tmp_path / 'first', tmp_path / 'then'
    train_tiny(tiny_config(first, 16, 4, train_cfg__max_epochs=3))
    _, updates = train_tiny(resumed(then, 16, 4, first / 'epoch_2.pth'))
    assert updates.iterations == [20, 24, 28, 32]
    message = refusal(resumed(then, 16, 8, first / 'epoch_2.pth'), begun=16)
    assert (
        'was trained otherwise (images_per_gpu=4 -> 8, '
        'iterations_per_epoch=8 -> 4). Resume with what it was trained with'
    ) in message
    assert "train_cfg.type='UpdateTrainLoop' goes on on any" in message


def test_resumed_from_a_run_without_the_hook(tmp_path):
    first, then = tmp_path / 'first', tmp_path / 'then'
    cfg = tiny_config(first, 16, 4, train_cfg__max_epochs=1)
    del cfg.default_hooks['total_batch']
    train_tiny(cfg)
    message = refusal(resumed(then, 16, 4, first / 'epoch_1.pth'), begun=8)
    assert 'counts=None -> micro-batches' in message
