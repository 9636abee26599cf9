# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The warm-up under mmengine's stock Runner, hooks and checkpoints."""

import itertools
import warnings
from fractions import Fraction

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner

import mmdet_megdet.schedulers  # noqa: F401  registers the warm-up
from mmdet_megdet.upstream.mmengine_names import set_accumulation

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


class AccumulateLate(Hook):
    """Set the accumulation as late as before_run."""

    def __init__(self, counts):
        self.counts = counts

    def before_run(self, runner):
        if self.counts is not None:
            set_accumulation(runner.optim_wrapper, self.counts)


def make_runner(work_dir, model, by_epoch=False, **settings):
    # The default sampler costs 2 s of mmengine's sleep per pass.
    sampler = 'DefaultSampler' if by_epoch else 'InfiniteSampler'
    return Runner(
        model,
        str(work_dir),
        train_dataloader=dict(
            dataset=[torch.ones(2) * i for i in range(8)],
            sampler=dict(type=sampler),
            batch_size=2,
            collate_fn=dict(type='pseudo_collate'),
        ),
        # Runners of one name would share message hub and logger.
        experiment_name=f'warmup_{next(_COUNT)}',
        **settings,
    )


def run(work_dir, param_scheduler, train_cfg, counts=None, **settings):
    """Train; returns the learning rates by iteration."""
    record = RecordLR()
    by_epoch = train_cfg['by_epoch']
    make_runner(
        work_dir,
        TinyModel(),
        by_epoch,
        train_cfg=train_cfg,
        optim_wrapper=dict(
            type='OptimWrapper',
            optimizer=dict(type='SGD', lr=LR, momentum=0.9),
            paramwise_cfg=dict(bias_lr_mult=2.0),
        ),
        param_scheduler=param_scheduler,
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook', interval=1, by_epoch=by_epoch
            )
        ),
        custom_hooks=[record, AccumulateLate(counts)],
        **settings,
    ).train()
    return record.used


def warmup_lr(iteration, begin=2, end=8, start_factor=0):
    """The closed formula, rounded once."""
    if not begin <= iteration < end:
        return [LR, 2 * LR]
    start = Fraction(start_factor)
    factor = start + (1 - start) * Fraction(iteration - begin, end - begin)
    return [float(Fraction(lr) * factor) for lr in (LR, 2 * LR)]


BY_ITER = dict(by_epoch=False, max_iters=10)
WARMUP = dict(type='PreciseLinearWarmup', start_factor=0, begin=2, end=8)


def test_warmup_in_epochs(tmp_path):
    scheduler = dict(
        type='PreciseLinearWarmup',
        end=2,
        by_epoch=True,
        convert_to_iter_based=True,
    )
    used = run(tmp_path, scheduler, dict(by_epoch=True, max_epochs=3))
    assert used == {i: warmup_lr(i, 0, 8, 0.001) for i in range(12)}


@pytest.mark.parametrize('counts', [1, 3])
def test_updates_are_counted_whatever_the_accumulation(tmp_path, counts):
    # 10 updates, the last of a single iteration under accumulation.
    iterations = 9 * counts + 1
    length = dict(by_epoch=False, max_iters=iterations)
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*optimizer.step.*')
        used = run(tmp_path, [WARMUP], length, counts=counts)
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
    length = dict(by_epoch=False, max_iters=30)
    straight = run(tmp_path, schedulers, length, counts=3)
    # 4 updates and 1 iteration done; the milestone is in the same iteration.
    for counts, load in ((3, 'iter_13.pth'), (2, 'iter_12.pth')):
        resumed = run(
            tmp_path / str(counts),
            schedulers,
            length,
            counts=counts,
            load_from=str(tmp_path / load),
            resume=True,
        )
        if counts == 3:
            assert resumed == {i: straight[i] for i in range(13, 30)}
            continue
        # 4 updates are done; the fifth takes 2 iterations now.
        for i, values in resumed.items():
            gamma = 0.1 if i >= 13 else 1
            for value, wanted in zip(
                values, warmup_lr(4 + (i - 12) // 2), strict=True
            ):
                # The milestone's product, its ratio, our product: 3 U.
                assert abs(value - gamma * wanted) <= 2**-51 * gamma * wanted


class TwoOptimizers(BaseModel):
    """The second is updated in every other iteration only."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 1)
        self.second = torch.nn.Linear(2, 1)
        self.calls = 0

    def train_step(self, data, optim_wrapper):
        inputs = torch.stack(data)
        optim_wrapper['first'].update_params(self.first(inputs).sum())
        self.calls += 1
        if self.calls % 2 == 0:
            optim_wrapper['second'].update_params(self.second(inputs).sum())
        return {}

    def forward(self, *inputs, **kwargs):
        raise NotImplementedError


def test_each_optimizer_of_several_has_its_own_updates(tmp_path):
    model = TwoOptimizers()
    wrappers = OptimWrapperDict(
        **{
            name: OptimWrapper(
                torch.optim.SGD(getattr(model, name).parameters(), lr=LR)
            )
            for name in ('first', 'second')
        }
    )
    values = []

    class Record(Hook):
        def before_train_iter(self, runner, *args, **kwargs):
            lrs = runner.optim_wrapper.get_lr()
            values.append((lrs['first.lr'][0], lrs['second.lr'][0]))

    make_runner(
        tmp_path,
        model,
        train_cfg=BY_ITER,
        optim_wrapper=wrappers,
        param_scheduler=[WARMUP],
        custom_hooks=[Record()],
    ).train()
    assert values == [
        (warmup_lr(i)[0], warmup_lr(i // 2)[0]) for i in range(10)
    ]
