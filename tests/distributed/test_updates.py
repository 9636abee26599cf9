# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The same training on any hardware, end to end through the stock Runner.

In float64, with a loss that is a plain mean over images of one size; updates
of eight images, BN units of four, three updates an epoch.
"""

import json
import os
import signal
from contextlib import nullcontext
from pathlib import Path

# Some are imported here for the ranks, which would do so one by one.
import matplotlib.pyplot  # noqa: F401
import numpy as np
import pytest
import torch
import torch._dynamo
import torch.utils.cpp_extension
from mmdet.models import DetDataPreprocessor
from mmengine.config import Config
from mmengine.hooks import EMAHook, Hook
from mmengine.hub import get_config
from mmengine.registry import HOOKS, MODELS
from torch.multiprocessing import ProcessExitedException

from tests.data import image_task, tiny_run
from tests.data.image_run import images_config
from tests.data.tiny_run import hook_of
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.slow

UPDATES = 30
# World size, images per GPU, of eight images an update.
REFERENCE = (1, 4)
SETTINGS = dict(
    model__bn_size=4,
    train_cfg=dict(_delete_=True, type='UpdateTrainLoop', max_updates=UPDATES),
    optim_wrapper__optimizer__lr=0.2,
    optim_wrapper__optimizer__weight_decay=0.001,
    optim_wrapper__clip_grad=dict(max_norm=3),
    # Stock, as the averaged weights are.
    param_scheduler=[
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=5),
        dict(type='CosineAnnealingLR', by_epoch=False, begin=5, end=UPDATES),
    ],
    custom_hooks=[
        dict(type='EMAHook', ema_type='ExponentialMovingAverage', momentum=0.1)
    ],
    train_dataloader__dataset__pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='mmdet.LoadAnnotations', with_bbox=True),
        dict(type='mmdet.PhotoMetricDistortion'),
        dict(type='mmdet.RandomFlip', prob=0.5),
        dict(type='mmdet.PackDetInputs'),
    ],
    default_hooks__logger=None,
    default_hooks__total_batch__total_batch_size=8,
    default_hooks__checkpoint__by_epoch=False,
    default_hooks__checkpoint__interval=10,
    log_level='ERROR',
)
# mmdet's own head, which divides by a rank's count of positive anchors.
RETINA = dict(
    train_cfg__max_updates=3,
    default_hooks__checkpoint__interval=3,
    model=dict(
        get_config('mmdet::_base_/models/retinanet_r50_fpn.py').model,
        _delete_=True,
        _scope_='mmdet',
    ),
    model__data_preprocessor__type='DoublePreprocessor',
    model__backbone=dict(
        type='ResNet',
        depth=18,
        base_channels=8,
        stem_channels=8,
        norm_cfg=dict(type='MegDetSyncBN', bn_size=4),
    ),
    model__neck__in_channels=[8, 16, 32, 64],
    model__bbox_head__num_classes=2,
    model__bbox_head__stacked_convs=1,
)


@MODELS.register_module()
class DoublePreprocessor(DetDataPreprocessor):
    """Images in float64, for a model in float64."""

    def forward(self, data: dict, training: bool = False) -> dict:
        data = super().forward(data, training)
        return data | dict(inputs=data['inputs'].double())


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'images'
    content = image_task.write_images(folder, 29)
    for box in content['annotations']:
        # Of several sizes, with more and fewer anchors.
        number = box['id']
        x, width, height = number % 12, 8 + number % 4 * 8, 8 + number % 3 * 8
        box |= dict(bbox=[x, 4, width, height], area=width * height)
    (folder / 'annotations.json').write_text(json.dumps(content))
    return folder


@HOOKS.register_module()
class UpdateWriter(Hook):
    """Writes down each update, for the case that the process is killed."""

    priority = 'VERY_LOW'

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        parameters = hook_of(runner, EMAHook).ema_model.module.parameters()
        mean = torch.cat([p.detach().flatten() for p in parameters]).mean()
        (rate,) = runner.optim_wrapper.get_lr()['lr']
        numbers = runner.iter, outputs['loss'].item(), rate, mean.item()
        with Path(runner.work_dir, f'{runner.rank}.txt').open('a') as file:
            print(*numbers, file=file)
        if runner.iter + 1 == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def train(rank, world_size, data, work_dir, images, kill_at, settings):
    torch.set_default_dtype(torch.float64)
    # Formatting it would take longer than the training.
    Config.pretty_text = ''
    settings = SETTINGS | settings | dict(train_dataloader__batch_size=images)
    cfg = images_config(data, work_dir, **settings)
    cfg.default_hooks.recorder = dict(type='UpdateWriter', kill_at=kill_at)
    tiny_run.train(cfg)


class Run:
    """A training of some ranks, and what each update has left behind."""

    def __init__(self, data, work_dir, split, kill_at=None, **settings):
        self.work_dir = work_dir
        work_dir.mkdir(exist_ok=True)
        for path in work_dir.glob('*.txt'):
            path.unlink()
        world_size, *images = split
        killed = pytest.raises(ProcessExitedException, match='SIGKILL')
        with killed if kill_at else nullcontext():
            given = (*images, kill_at, settings)
            run_ranks(train, world_size, data, work_dir, *given)
        ranks = [np.loadtxt(work_dir / f'{r}.txt') for r in range(world_size)]
        table = torch.tensor(np.stack(ranks))
        # Averaged weights and rates are the same on all ranks.
        assert (table[:, :, 2:] == table[:1, :, 2:]).all()
        self.first = int(table[0, 0, 0])
        self.losses = table[:, :, 1].mean(0)
        self.rates, self.ema = table[0, :, 2:].T

    def weights(self, update=UPDATES):
        """Model and averaged model, with their running statistics."""
        checkpoint = torch.load(self.work_dir / f'iter_{update}.pth')
        parts = ('state_dict', 'ema_state_dict')
        return {part: dict(checkpoint[part]) for part in parts}

    def assert_same(self, expected):
        done = slice(self.first, self.first + len(self.losses))
        for name, bound in [('losses', 1e-9), ('rates', 0), ('ema', 1e-9)]:
            found, wanted = getattr(self, name), getattr(expected, name)[done]
            torch.testing.assert_close(found, wanted, rtol=bound, atol=0)
        if done.stop == UPDATES:
            torch.testing.assert_close(
                self.weights(), expected.weights(), rtol=0, atol=1e-8
            )


@pytest.fixture(scope='module')
def reference(data, tmp_path_factory):
    return Run(data, tmp_path_factory.mktemp('reference'), REFERENCE)


def test_the_reference_learns(reference):
    assert len(reference.losses) == UPDATES
    assert reference.losses[-3:].mean() < 0.8 * reference.losses[:3].mean()
    moved = reference.weights()['ema_state_dict']
    for name, value in reference.weights(10)['ema_state_dict'].items():
        if name.endswith(('weight', 'running_mean', 'running_var')):
            assert (moved[name] - value).abs().max() > 1e-5, name


@pytest.mark.parametrize(
    'split', [(2, 2), (2, 4), (4, 1), (4, 2), (8, 1)], ids=str
)
def test_splits(data, tmp_path, reference, split):
    Run(data, tmp_path, split).assert_same(reference)


def test_a_chain_of_machines(data, tmp_path, reference):
    """Killed inside an epoch, twice, two updates after a checkpoint."""
    for split, kill_at in [((8, 1), 12), ((2, 4), 22), ((4, 2), None)]:
        run = Run(data, tmp_path, split, kill_at, resume=True)
        assert run.first + len(run.losses) == (kill_at or UPDATES)
        run.assert_same(reference)
    assert run.first == 20


def test_stock_parts_do_no_such_thing(data, tmp_path, reference):
    loop = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=3)
    stock = dict(train_cfg=loop, train_dataloader__batch_sampler=None)
    run = Run(data, tmp_path, (2, 4), **stock)
    difference = run.losses / reference.losses[: len(run.losses)] - 1
    assert difference.abs().min() > 1e-3


@pytest.mark.parametrize('split', [(2, 2), (4, 2)])
def test_losses_normalised_by_unit(data, tmp_path, split):
    """One rank with four images divides by their count without the hook."""
    hook = dict(RETINA, default_hooks__unit_loss=dict(type='UnitLossHook'))
    one = Run(data, tmp_path / 'one', REFERENCE, **RETINA).losses
    stock = Run(data, tmp_path / 'stock', split, **RETINA).losses
    units = Run(data, tmp_path / 'units', split, **hook).losses
    # mmdet adds float32's eps to the count.
    assert (units / one - 1).abs().max() < 1e-6
    assert (stock / one - 1).abs()[0] > 1e-3
