# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The warm-up under mmengine's stock Runner, hooks and checkpoints."""

import itertools
import warnings
from fractions import Fraction

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner

import mmdet_megdet.schedulers  # noqa: F401  registers the warm-up

_COUNT = itertools.count()
LR = 0.04
WARMUP = dict(type='PreciseLinearWarmup', start_factor=0, begin=2, end=8)


class TinyModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, *inputs, mode):
        return dict(loss=self.layer(torch.stack(inputs)).square().mean())


class Recorder(Hook):
    """Notes the learning rates by iteration."""

    def __init__(self):
        self.used = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        groups = runner.optim_wrapper.optimizer.param_groups
        self.used[runner.iter] = [group['lr'] for group in groups]


def run(work_dir, param_scheduler, length, counts=1, **settings):
    """Train; returns the learning rates by iteration."""
    record = Recorder()
    by_epoch = 'max_epochs' in length
    # The default sampler costs 2 s of mmengine's sleep per pass.
    sampler = 'DefaultSampler' if by_epoch else 'InfiniteSampler'
    checkpoint = dict(type='CheckpointHook', interval=1, by_epoch=by_epoch)
    Runner(
        TinyModel(),
        str(work_dir),
        train_dataloader=dict(
            dataset=[torch.ones(2) * i for i in range(8)],
            sampler=dict(type=sampler),
            batch_size=2,
            collate_fn=dict(type='pseudo_collate'),
        ),
        # Runners of one name would share message hub and logger.
        experiment_name=f'warmup_{next(_COUNT)}',
        train_cfg=dict(length, by_epoch=by_epoch),
        optim_wrapper=dict(
            optimizer=dict(type='SGD', lr=LR),
            paramwise_cfg=dict(bias_lr_mult=2.0),
            accumulative_counts=counts,
        ),
        param_scheduler=param_scheduler,
        default_hooks=dict(checkpoint=checkpoint),
        custom_hooks=[record],
        **settings,
    ).train()
    return record.used


def warmup_lr(update):
    """The closed formula, rounded once."""
    factor = Fraction(update - 2, 6) if 2 <= update < 8 else 1
    return [float(Fraction(lr) * factor) for lr in (LR, 2 * LR)]


def test_warmup_in_epochs(tmp_path):
    epochs = dict(begin=0.5, end=2, by_epoch=True, convert_to_iter_based=True)
    used = run(tmp_path, WARMUP | epochs, dict(max_epochs=3))
    assert used == {i: warmup_lr(i) for i in range(12)}


@pytest.mark.parametrize('counts', [1, 3])
def test_updates_are_counted_whatever_the_accumulation(tmp_path, counts):
    # 10 updates, the last of a single iteration under accumulation.
    iterations = 9 * counts + 1
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*optimizer.step.*')
        used = run(tmp_path, [WARMUP], dict(max_iters=iterations), counts)
    assert used == {i: warmup_lr(i // counts) for i in range(iterations)}


@pytest.mark.parametrize('warmup_first', [True, False])
def test_resume_within_an_accumulation_and_with_another(
    tmp_path, monkeypatch, warmup_first
):
    # Under torch >= 2.6 mmengine alone does not load what it saved.
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    schedulers = [
        WARMUP,
        dict(type='MultiStepLR', milestones=[13], by_epoch=False),
    ][:: 1 if warmup_first else -1]

    def resumed(counts, iteration):
        path = str(tmp_path / f'iter_{iteration}.pth')
        work_dir = tmp_path / str(counts)
        settings = dict(load_from=path, resume=True)
        return run(work_dir, schedulers, length, counts, **settings)

    length = dict(max_iters=30)
    straight = run(tmp_path, schedulers, length, counts=3)
    # 4 updates and 1 iteration done; the milestone is in the same iteration.
    assert resumed(3, 13) == {i: straight[i] for i in range(13, 30)}
    # 4 updates are done; the fifth takes 2 iterations now.
    for i, values in resumed(2, 12).items():
        gamma = 0.1 if i >= 13 else 1
        for value, wanted in zip(
            values, warmup_lr(4 + (i - 12) // 2), strict=True
        ):
            # The milestone's product, its ratio, our product: 3 U.
            assert abs(value - gamma * wanted) <= 2**-51 * gamma * wanted
