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


class TinyModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, *inputs, mode):
        return dict(loss=self.layer(torch.stack(inputs)).square().mean())


class RecordLR(Hook):
    def __init__(self):
        self.used = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        groups = runner.optim_wrapper.optimizer.param_groups
        self.used[runner.iter] = [group['lr'] for group in groups]


def run(work_dir, param_scheduler, train_cfg, accumulative_counts=1, **kwargs):
    """Train; returns the learning rates by iteration."""
    record = RecordLR()
    by_epoch = train_cfg['by_epoch']
    runner = Runner(
        model=TinyModel(),
        work_dir=str(work_dir),
        train_dataloader=dict(
            dataset=[torch.ones(2) * i for i in range(8)],
            # The default one costs 2 s of mmengine's sleep per pass.
            sampler=dict(
                type='DefaultSampler' if by_epoch else 'InfiniteSampler'
            ),
            batch_size=2,
            collate_fn=dict(type='pseudo_collate'),
        ),
        train_cfg=train_cfg,
        optim_wrapper=dict(
            type='OptimWrapper',
            optimizer=dict(type='SGD', lr=LR, momentum=0.9),
            paramwise_cfg=dict(bias_lr_mult=2.0),
            accumulative_counts=accumulative_counts,
        ),
        param_scheduler=param_scheduler,
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook', interval=4, by_epoch=by_epoch
            )
        ),
        custom_hooks=[record],
        # Runners of one name would share message hub and logger.
        experiment_name=f'warmup_{next(_COUNT)}',
        **kwargs,
    )
    runner.train()
    return record.used


def warmup_lr(iteration, begin, end, start_factor):
    if not begin <= iteration < end:
        return [LR, 2 * LR]
    start = Fraction(start_factor)
    factor = start + (1 - start) * Fraction(iteration - begin, end - begin)
    return [LR * float(factor), 2 * LR * float(factor)]


BY_ITER = dict(by_epoch=False, max_iters=10)
WARMUP = dict(type='PreciseLinearWarmup', start_factor=0, begin=2, end=8)


def test_lr_of_each_iteration(tmp_path):
    used = run(tmp_path, [WARMUP], BY_ITER)
    assert used == {i: warmup_lr(i, 2, 8, 0) for i in range(10)}


def test_warmup_in_epochs(tmp_path):
    scheduler = dict(
        type='PreciseLinearWarmup',
        end=2,
        by_epoch=True,
        convert_to_iter_based=True,
    )
    used = run(tmp_path, scheduler, dict(by_epoch=True, max_epochs=3))
    assert used == {i: warmup_lr(i, 0, 8, 0.001) for i in range(12)}


def test_resume_within_the_warmup(tmp_path, monkeypatch):
    # Under torch >= 2.6 mmengine alone does not load what it saved.
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    milestones = dict(type='MultiStepLR', milestones=[5], by_epoch=False)
    for name, schedulers in (
        ('first', [WARMUP, milestones]),
        ('last', [milestones, WARMUP]),
    ):
        straight = run(tmp_path / name, schedulers, BY_ITER)
        assert straight[5][0] == pytest.approx(LR * 0.5 * 0.1)
        resumed = run(
            tmp_path / name / 'resumed',
            schedulers,
            BY_ITER,
            load_from=str(tmp_path / name / 'iter_4.pth'),
            resume=True,
        )
        assert resumed == {i: straight[i] for i in range(4, 10)}


def test_accumulation_brings_no_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*optimizer.step.*')
        run(tmp_path, [WARMUP], BY_ITER, accumulative_counts=4)
