# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set-ups that started and did nothing, or never ended, through the Runner."""

import random
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from mmdet.datasets.samplers import (
    AspectRatioBatchSampler,
    MultiDataAspectRatioBatchSampler,
)
from mmengine.dataset import DefaultSampler
from mmengine.runner import Runner, set_random_seed
from torch.utils.data import DataLoader

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.faults import setup
from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import by_iteration, tiny_config

STEP = dict(type='StepLR', step_size=2)
BY_ITER = by_iteration(9)
ENDLESS = dict(type='InfiniteSampler', _delete_=True)
NO_BATCH = dict(
    train_dataloader__dataset__length=3, train_dataloader__drop_last=True
)
NO_VALIDATION = dict(val_cfg=None, val_dataloader=None, val_evaluator=None)


def runner_of(tmp_path, hook='SetupCheckHook', **settings):
    """With one of our hooks alone."""
    cfg = tiny_config(tmp_path, 4, 4, **settings)
    cfg.default_hooks = dict(ours=dict(type=hook))
    return Runner.from_cfg(cfg)


@pytest.mark.parametrize(('told', 'schedulers', 'settings'), [
    (r'train_dataloader makes no batch.*3 image\(s\).*takes 4', [], NO_BATCH),
    ('train_dataloader makes no batch', [], NO_BATCH | BY_ITER),
    (r'val_dataloader makes no batch.*0 image\(s\)', [],
     dict(val_dataloader__dataset__length=0)),
    (r"InfiniteSampler.*sampler=dict\(type='DefaultSampler'", [],
     dict(train_dataloader__sampler=ENDLESS)),
    ('val_dataloader: InfiniteSampler', [],
     dict(val_dataloader__sampler=ENDLESS) | BY_ITER),
    ('max_epochs: 0 is no', [], dict(train_cfg__max_epochs=0)),
    ('max_iters: -1', [], BY_ITER | dict(train_cfg__max_iters=-1)),
    ('val_interval from 0 on: 0', [], dict(train_cfg__val_interval=0)),
    ('dynamic_intervals from 3 on: 0', [],
     dict(train_cfg__dynamic_intervals=[(3, 0)])),
    ('StepLR counts epochs.*convert_to_iter_based=True', [STEP], BY_ITER),
    ('StepLR has no end.*one epoch', [dict(STEP, convert_to_iter_based=True)],
     BY_ITER),
    ('ReduceOnPlateauLR goes by the results of validation',
     [dict(type='ReduceOnPlateauLR')], NO_VALIDATION),
    ('PreciseLinearWarmup has no end', [dict(type='PreciseLinearWarmup')], {}),
    # 8 iterations an epoch; the warm-up is over after 26.
    (r'CosineAnnealingLR\(begin=2, end=4, in epochs\).*'
     r'PreciseLinearWarmup\(begin=0, end=13, in updates\)',
     [dict(type='PreciseLinearWarmup', end=13),
      dict(type='CosineAnnealingLR', T_max=2, begin=2, eta_min=1e-3)],
     dict(optim_wrapper__accumulative_counts=2)),
])  # fmt: skip
def test_refused_before_training(tmp_path, told, schedulers, settings):
    settings = settings | dict(param_scheduler=schedulers)
    runner = runner_of(tmp_path, **settings)
    with pytest.raises(ConfigError, match=told):
        runner.train()
    assert runner.iter == 0


@pytest.mark.parametrize(
    'hook', ['SyncBNGroup', 'DataCheck', 'Preemption', 'TotalBatch']
)
def test_by_any_of_our_hooks(tmp_path, hook):
    """Also where the Runner has validated before."""
    runner = runner_of(tmp_path, f'{hook}Hook', train_cfg__max_epochs=0)
    runner.val()
    with pytest.raises(ConfigError, match='max_epochs: 0'):
        runner.train()


def test_converted_from_epochs_it_steps(tmp_path):
    steps = dict(STEP, convert_to_iter_based=True, step_size=1, end=9)
    runner = runner_of(tmp_path, **BY_ITER | dict(param_scheduler=[steps]))
    runner.train()
    # An epoch of an endless sampler is its data set: 32 images / 4.
    (rate,) = runner.optim_wrapper.get_lr()['lr']
    assert rate == pytest.approx(0.005)


@pytest.mark.parametrize('settings', [dict(end=None), dict(by_epoch=True)])
def test_a_warmup_without_an_end(tmp_path, settings):
    """By the tools ahead of the class, which would say something else."""
    cfg = tiny_config(tmp_path, 4, 4)
    warmup = dict(type='mmengine.PreciseCosineWarmupMomentum', **settings)
    cfg.param_scheduler = dict(a=[STEP], b=[warmup])
    with pytest.raises(ConfigError, match='has no end'):
        adapt_config(cfg)


def test_numbers_of_batches():
    """One rank may have nothing to validate."""
    loader = DataLoader(range(1), batch_size=1)
    setup.check_lengths(loader, 'val', [1, 0])
    for kind, lengths in (('train', [1, 0]), ('test', [0, 0])):
        with pytest.raises(ConfigError, match=f'{kind}_dataloader makes no'):
            setup.check_lengths(loader, kind, lengths)
    setup.check_same_lengths([4, 4])
    told = r'4 on rank 0 and 3 on rank 1.*round'
    with pytest.raises(ConfigError, match=told):
        setup.check_same_lengths([4, 3])


class Images(list):
    """Widths beside a height of 10."""

    def get_data_info(self, index):
        return dict(width=self[index], height=10)

    def get_dataset_source(self, index):
        return 0


MIXED, ALIKE = Images([9, 11] * 8), Images([11] * 16)


def batches(kind, dataset, *args):
    """A loader, as mmdet makes it of a batch sampler."""
    sampler = kind(DefaultSampler(dataset, seed=0), *args)
    return DataLoader(dataset, batch_sampler=sampler)


@pytest.mark.parametrize(('loader', 'told'), [
    (batches(AspectRatioBatchSampler, MIXED, 4, True),
     r'16 images.*UpdateTrainLoop'),
    (batches(partial(MultiDataAspectRatioBatchSampler, num_datasets=1),
             MIXED, [3]), 'MultiDataAspectRatio'),
    (batches(AspectRatioBatchSampler, ALIKE, 4, True), None),
    (batches(AspectRatioBatchSampler, MIXED, 3, True), None),
    (batches(AspectRatioBatchSampler, MIXED, 1, True), None),
    (batches(AspectRatioBatchSampler, MIXED, 4, False), None),
    (DataLoader(MIXED, batch_size=4, drop_last=True), None),
])  # fmt: skip
def test_orientations_where_ranks_can_differ(loader, told):
    """On one rank; test_images_per_gpu.py counts the batches of several."""
    refused = pytest.raises(ConfigError, match=told) if told else nullcontext()
    with refused:
        setup.check_orientations(loader)


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


class TooMany(DefaultSampler):
    """Yields more than it says, and draws from every generator."""

    def __len__(self):
        return super().__len__() - 1

    def __iter__(self):
        draw()
        return super().__iter__()


def test_a_sampler_that_says_too_little():
    """What is drawn for the check is put back."""
    loader = DataLoader(range(9), sampler=TooMany(range(9)))
    set_random_seed(3)
    expected = draw()
    set_random_seed(3)
    with pytest.raises(ConfigError, match='TooMany gives more than the 8 it'):
        setup.check_end(loader, 'train')
    assert draw() == expected


class MultiSourceSampler(DefaultSampler):
    """By its name mmdet's, which may look for ever for its next image."""

    def __iter__(self):
        pytest.fail('is asked')


def test_known_samplers_are_not_asked():
    loader = DataLoader(range(9), sampler=MultiSourceSampler(range(9)))
    with pytest.raises(ConfigError, match='MultiSourceSampler gives more'):
        setup.check_end(loader, 'train')
