# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The schedule that is shown is the one that a training has."""

from __future__ import annotations

import csv
import json
import sys
from fractions import Fraction

import cv2
import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from tests.tools.command import ROOT, TINY_CONFIG, TOOLS

sys.path.insert(0, str(TOOLS / 'analysis'))  # as for a script there

import plot_schedule
import rehearsal

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


def values(config, *options):
    """The rows of the table, as floats."""
    out, table = (config.parent / name for name in ('out/a.png', 'out/b.csv'))
    command = [config, *options, '--out', out, '--csv', table]
    assert plot_schedule.main([str(word) for word in command]) == 0
    assert cv2.imread(str(out)).shape[1] == 1200
    return read(table)


def read(table):
    with table.open() as file:
        return [
            tuple(map(float, row.values())) for row in csv.DictReader(file)
        ]


def warmup_lr(update, begin, end, lr=0.04):
    if not begin <= update < end:
        return lr
    start = Fraction(0.001)
    progress = Fraction(update - begin, end - begin)
    return float(Fraction(lr) * (start + (1 - start) * progress))


def test_every_update_of_the_recipe(tmp_path):
    out, table = tmp_path / 'a.png', tmp_path / 'a.csv'
    command = [RECIPE, '--gpus', 8, '--images', 117266]
    command += ['--out', out, '--csv', table]
    assert plot_schedule.main([str(word) for word in command]) == 0
    rows = read(table)
    assert len(rows) == 24 * 458
    for number, (update, first, epoch, lr) in enumerate(rows):
        assert (update, first) == (number, number)
        assert epoch == number / 458
        drops = (epoch >= 16) + (epoch >= 22)
        wanted = warmup_lr(number, 0, 1000)
        if drops == 0:
            assert lr == wanted
        else:  # one product a milestone
            assert lr == pytest.approx(wanted * 0.1**drops, rel=2**-50)


def test_accumulation_with_a_remainder_and_a_milestone_inside(config):
    rows = values(config, '--images', 20)
    # 4 epochs of 10 iterations are 13 updates and one of a single iteration.
    assert [row[:3] for row in rows] == [
        (k, 3 * k, 3 * k / 10) for k in range(14)
    ]
    for k, (*_, lr) in enumerate(rows):
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
    schedule = rehearsal.rehearse(cfg)
    runner = Runner.from_cfg(cfg)
    runner.register_hook(RecordLR())
    runner.train()

    assert schedule.epoch_length == 8
    lasts = [u.first_iteration - 1 for u in schedule.updates[1:]] + [31]
    assert lasts == [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 31]
    assert [u.lr for u in schedule.updates] == [
        RecordLR.used[last] for last in lasts
    ]


@pytest.mark.parametrize('gpus', [2, 4])
def test_total_batch_hook_sets_the_accumulation(config, gpus):
    hook = 'default_hooks.total_batch'
    options = ['--gpus', gpus, '--images', 160, '--cfg-options']
    options += [f'{hook}.type=TotalBatchHook', f'{hook}.total_batch_size=16']
    rows = values(config, *options)
    # 10 updates an epoch on any hardware, and update k's rate is the same.
    wanted = [warmup_lr(k, 1, 5) * (1 if k < 20 else 0.1) for k in range(40)]
    assert [row[3] for row in rows] == wanted
    assert rows[-1][1] == 39 * 16 / (gpus * 2)


def test_marks(config):
    cfg = Config.fromfile(config)
    schedule = rehearsal.rehearse(cfg, epoch_length=30)
    # The milestone at epoch 9 lies behind the end of its scheduler.
    assert schedule.marks == [
        ('PreciseLinearWarmup ends', 5),
        ('milestone', 20),
    ]
    figure = plot_schedule.draw(schedule, 'a config')
    upper, lower = figure.axes
    assert lower.get_xlabel() == 'optimizer update'
    (epochs,) = upper.child_axes
    assert epochs.get_xlabel() == 'epoch'
    figure.draw_without_rendering()
    assert epochs.get_xlim() == pytest.approx((0, 4))
    labels = upper.get_legend_handles_labels()[1]
    assert labels == [
        'PreciseLinearWarmup ends: update 5, epoch 0.5',
        'milestone: update 20, epoch 2',
    ]
    plot_schedule.plt.close(figure)


def test_iteration_based_loop_and_stock_schedulers(config):
    cfg = Config.fromfile(config)
    cfg.train_cfg = dict(by_epoch=False, max_iters=40)
    cfg.optim_wrapper.accumulative_counts = 2
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=11),
        dict(type='MultiStepLR', by_epoch=False, milestones=[20], gamma=0.5),
        # Never stepped by this loop.
        dict(type='MultiStepLR', milestones=[1], end=2),
    ]
    schedule = rehearsal.rehearse(cfg, epoch_length=10)
    assert schedule.marks == [('LinearLR ends', 5.5), ('milestone', 10)]
    for k, update in enumerate(schedule.updates):
        factor = 0.5 + min(0.05 * (2 * k + 1), 0.5)
        wanted = 0.04 * factor * (0.5 if k >= 10 else 1)
        assert update.lr == pytest.approx(wanted)


def test_updates_as_the_iterations(config):
    cfg = Config.fromfile(config)
    cfg.train_cfg = dict(type='UpdateTrainLoop', max_updates=25)
    del cfg.optim_wrapper['accumulative_counts']
    cfg.default_hooks = dict(
        total=dict(type='TotalBatchHook', total_batch_size=16)
    )
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=11),
        dict(type='MultiStepLR', milestones=[1], gamma=0.5),
    ]
    schedule = rehearsal.rehearse(cfg, gpus=2, images=175)
    assert (schedule.epoch_length, schedule.updates_per_epoch) == (10, 10)
    assert '2 GPU(s) x 2 images x 4 accumulated = 16' in schedule.batch
    assert schedule.marks == [('milestone', 10), ('LinearLR ends', 11)]
    for k, update in enumerate(schedule.updates):
        wanted = 0.04 * (0.5 + min(0.05 * k, 0.5)) * (0.5 if k >= 10 else 1)
        assert update.lr == pytest.approx(wanted)
    assert len(schedule.updates) == 25


def test_learning_rate_that_mmengine_scales(config):
    cfg = Config.fromfile(config)
    cfg.auto_scale_lr = dict(enable=True, base_batch_size=4)
    with pytest.raises(ValueError, match='ignores accumulative_counts=3'):
        rehearsal.rehearse(cfg, gpus=4, epoch_length=30)
    cfg.optim_wrapper.accumulative_counts = 1
    schedule = rehearsal.rehearse(cfg, gpus=4, epoch_length=30)
    assert schedule.updates[0].lr == 0.08


@pytest.mark.parametrize(
    ('images', 'gpus', 'size', 'drop_last', 'length'),
    [
        (117266, 8, 4, True, 3664),
        (117266, 8, 4, False, 3665),
        (117266, 6, 4, True, 4886),
        (9, 4, 2, False, 2),
    ],
)
def test_length_of_an_epoch(images, gpus, size, drop_last, length):
    batch_sampler = dict(drop_last=drop_last)
    cfg = Config(
        dict(
            train_dataloader=dict(batch_size=size, batch_sampler=batch_sampler)
        )
    )
    assert rehearsal.get_epoch_length(cfg, images, gpus) == length


def write_coco(path, empty):
    images = [
        dict(id=i, file_name=f'{i}.jpg', width=64, height=64)
        for i in range(20 + empty)
    ]
    annotations = [
        dict(
            id=i,
            image_id=i,
            category_id=1,
            bbox=[1, 1, 9, 9],
            area=81,
            iscrowd=0,
        )
        for i in range(20)
    ]
    categories = [dict(id=1, name='thing')]
    path.write_text(
        json.dumps(
            dict(images=images, annotations=annotations, categories=categories)
        )
    )


def test_images_of_the_data_set_that_are_trained_on(config, tmp_path, capsys):
    pytest.importorskip('mmdet')
    ann_file = tmp_path / 'train.json'
    config.write_text(
        SMALL.replace("'mmengine'", "'mmdet'").replace(
            'batch_size=2',
            "batch_size=2, dataset=dict(type='CocoDataset', pipeline=[], "
            "data_prefix=dict(img=''), "
            "metainfo=dict(classes=('thing',)), "
            f"ann_file='{ann_file}', filter_cfg=dict(filter_empty_gt=True))",
        )
    )
    assert plot_schedule.main([str(config)]) == 1
    error = capsys.readouterr().err
    assert 'train.json' in error
    assert '--images N' in error
    write_coco(ann_file, empty=5)
    assert rehearsal.rehearse(Config.fromfile(config)).epoch_length == 10


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--images', '1', '--gpus', '8'], None),
        (
            [
                '--images',
                '160',
                '--gpus',
                '3',
                '--cfg-options',
                'default_hooks.total_batch.type=TotalBatchHook',
            ],
            'least changed first',
        ),
        (
            [
                '--images',
                '1',
                '--cfg-options',
                'train_dataloader.drop_last=True',
            ],
            '1 images make no iteration of 1 GPUs x 2',
        ),
        (
            ['--images', '9', '--cfg-options', 'param_scheduler.0.end=0'],
            'begin=1, end=0',
        ),
    ],
)
def test_what_cannot_be_shown(config, tmp_path, capsys, options, message):
    command = [str(config), '--out', str(tmp_path / 'a.png'), *options]
    status = plot_schedule.main(command)
    assert status == (message is not None)
    assert (message or '') in capsys.readouterr().err
    assert (tmp_path / 'a.png').exists() == (message is None)


def test_bad_options(config, capsys):
    for options in (['--gpus', '0'], ['--images', '9', '--epoch-length', '9']):
        with pytest.raises(SystemExit):
            plot_schedule.main([str(config), *options])
    errors = capsys.readouterr().err
    assert "'0' is not a positive whole number" in errors
    assert 'not allowed with argument' in errors
    assert plot_schedule.main([f'{config}x']) == 1
