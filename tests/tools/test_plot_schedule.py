# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The schedule that is shown is the one that a training has."""

from __future__ import annotations

import json
import sys
from fractions import Fraction

import cv2
import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmdet_megdet.errors import ConfigError
from tests.tools.command import ROOT, TINY_CONFIG, TOOLS

sys.path.insert(0, str(TOOLS / 'analysis'))  # as for a script there

import plot_schedule
from plot_schedule import rehearse

RECIPE = ROOT / 'configs' / 'megdet' / 'r50_fpn_256bs.py'
SMALL = """
default_scope = 'mmengine'
train_dataloader = dict(batch_size=2)
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.04), accumulative_counts=3
)
param_scheduler = [
    dict(type='PreciseLinearWarmup', start_factor=0.001, begin=1, end=5),
    dict(type='MultiStepLR', milestones=[2, 9], end=4),
]
train_cfg = dict(by_epoch=True, max_epochs=4)
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'small.py'
    path.write_text(SMALL)
    return path


@pytest.fixture
def cfg(config):
    return Config.fromfile(config)


def warmup_lr(update, begin, end, lr=0.04):
    if not begin <= update < end:
        return lr
    start = Fraction(0.001)
    progress = Fraction(update - begin, end - begin)
    return float(Fraction(lr) * (start + (1 - start) * progress))


def test_every_update_of_the_recipe():
    rates = rehearse(Config.fromfile(RECIPE), 8, 117266).rates
    assert len(rates) == 24 * 458
    for update, lr in enumerate(rates):
        drops = (update >= 16 * 458) + (update >= 22 * 458)
        wanted = warmup_lr(update, 0, 1000)
        if drops == 0:
            assert lr == wanted
        else:  # one product a milestone
            assert lr == pytest.approx(wanted * 0.1**drops, rel=2**-50)


def test_accumulation_with_a_remainder_and_a_milestone_inside(cfg):
    schedule = rehearse(cfg, images=20)
    # 4 epochs of 10 iterations are 13 updates and one of a single iteration.
    assert len(schedule.rates) == 14
    assert schedule.updates_per_epoch == 10 / 3
    for k, lr in enumerate(schedule.rates):
        # The milestone comes after iteration 19, within update 6.
        stepped_at = min(3 * k + 2, 39)
        drop = 0.1 if stepped_at >= 20 else 1
        assert lr == warmup_lr(k, 1, 5) * drop


def test_it_is_what_the_runner_does(tmp_path):
    class RecordLR(Hook):
        used = []

        def before_train_iter(self, runner, *args, **kwargs):
            self.used.append(runner.optim_wrapper.get_lr()['lr'][0])

    cfg = Config.fromfile(TINY_CONFIG)
    cfg.work_dir = str(tmp_path)
    cfg.optim_wrapper.accumulative_counts = 3
    cfg.train_dataloader.num_workers = 0
    rates = rehearse(cfg).rates
    runner = Runner.from_cfg(cfg)
    runner.register_hook(RecordLR())
    runner.train()
    lasts = [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 31]
    assert rates == [RecordLR.used[last] for last in lasts]


def test_marks(cfg):
    schedule = rehearse(cfg, images=60)
    # The milestone at epoch 9 lies behind the end of its scheduler.
    assert schedule.marks == [
        ('PreciseLinearWarmup ends', 5),
        ('milestone', 20),
    ]
    figure = plot_schedule.draw(schedule, 'a config')
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == [
        'PreciseLinearWarmup ends: update 5, epoch 0.5',
        'milestone: update 20, epoch 2',
    ]
    plot_schedule.plt.close(figure)


def test_iteration_based_loop_and_stock_schedulers(cfg):
    cfg.train_cfg = dict(by_epoch=False, max_iters=40)
    cfg.optim_wrapper.accumulative_counts = 2
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=11),
        dict(type='MultiStepLR', by_epoch=False, milestones=[20], gamma=0.5),
        # Never stepped by this loop.
        dict(type='MultiStepLR', milestones=[1], end=2),
    ]
    schedule = rehearse(cfg, images=20)
    assert schedule.marks == [('LinearLR ends', 5.5), ('milestone', 10)]
    for k, lr in enumerate(schedule.rates):
        factor = 0.5 + min(0.05 * (2 * k + 1), 0.5)
        assert lr == pytest.approx(0.04 * factor * (0.5 if k >= 10 else 1))


def test_updates_as_the_iterations(cfg):
    cfg.train_cfg = dict(type='UpdateTrainLoop', max_updates=25)
    del cfg.optim_wrapper['accumulative_counts']
    hook = dict(type='TotalBatchHook', total_batch_size=16)
    cfg.default_hooks = dict(total=hook)
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=11),
        dict(type='MultiStepLR', milestones=[1], gamma=0.5),
    ]
    schedule = rehearse(cfg, gpus=2, images=175)
    assert schedule.updates_per_epoch == 10
    assert '2 GPU(s) x 2 images x 4 accumulated = 16' in schedule.batch
    assert schedule.marks == [('milestone', 10), ('LinearLR ends', 11)]
    assert len(schedule.rates) == 25
    for k, lr in enumerate(schedule.rates):
        wanted = 0.04 * (0.5 + min(0.05 * k, 0.5)) * (0.5 if k >= 10 else 1)
        assert lr == pytest.approx(wanted)


def test_learning_rate_that_mmengine_scales(cfg):
    cfg.auto_scale_lr = dict(enable=True, base_batch_size=4)
    with pytest.raises(ValueError, match='ignores accumulative_counts=3'):
        rehearse(cfg, gpus=4, images=240)
    cfg.optim_wrapper.accumulative_counts = 1
    assert rehearse(cfg, gpus=4, images=240).rates[0] == 0.08


@pytest.mark.parametrize(
    ('gpus', 'drop_last', 'length'),
    [(8, True, 3664), (8, False, 3665), (6, True, 4886)],
)
def test_length_of_an_epoch(cfg, gpus, drop_last, length):
    batch_sampler = dict(drop_last=drop_last)
    cfg.train_dataloader = dict(batch_size=4, batch_sampler=batch_sampler)
    assert plot_schedule.epoch_length(cfg, 117266, gpus, 1) == length


def test_images_of_the_data_set(cfg, tmp_path):
    ann_file = tmp_path / 'train.json'
    cfg.train_dataloader.dataset = dict(
        type=BaseDataset, ann_file=str(ann_file), indices=20
    )
    with pytest.raises(ConfigError, match=r'train\.json.*--images N'):
        rehearse(cfg)
    content = dict(metainfo={}, data_list=[dict(img_path='a')] * 25)
    ann_file.write_text(json.dumps(content))
    assert plot_schedule.count_images(cfg) == 20


@pytest.mark.parametrize(
    ('images', 'option', 'message'),
    [
        (9, 'optim_wrapper.accumulative_counts=1', None),
        (160, 'default_hooks.a.type=TotalBatchHook', 'least changed first'),
        (1, 'train_dataloader.drop_last=True', '1 images make no iteration'),
        (9, 'param_scheduler.0.end=0', 'begin=1, end=0'),
    ],
)
def test_command(config, tmp_path, capsys, images, option, message):
    out = tmp_path / 'new' / 'a.png'
    words = ['--gpus', 3, '--images', images, '--out', out]
    words = [*map(str, words), '--cfg-options', option]
    assert plot_schedule.main([str(config), *words]) == (message is not None)
    assert (message or '') in capsys.readouterr().err
    assert out.exists() == (message is None)
    assert message or cv2.imread(str(out)).shape[1] == 1200
