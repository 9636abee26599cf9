# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The schedule that is shown is the one that a training has."""

import cv2
import plot_schedule
import pytest
from mmengine.config import Config
from plot_schedule import rehearse
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mmdet_megdet.cli import build_runner
from mmdet_megdet.errors import MegDetError
from tests.tools.command import ROOT, TINY_CONFIG

RECIPE = ROOT / 'configs' / 'megdet' / 'r50_fpn_256bs.py'
# Of eight iterations an epoch.
LINEAR = dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=11)
WARM_UP = 'PreciseLinearWarmup ends'
SETTINGS = [
    # 20 iterations, each fourth one of two images, are two updates and one of
    # four iterations. The milestone comes within the second update.
    (
        {
            'optim_wrapper.accumulative_counts': 8,
            'train_cfg.max_epochs': 5,
            'train_dataloader.batch_size': 10,
            'param_scheduler.0.end': 1,
        },
        [(WARM_UP, 1), ('milestone', 1.5), ('MultiStepLR ends', 2)],
    ),
    # MMEngine scales the learning rate; three iterations an epoch.
    (
        {
            'optim_wrapper.accumulative_counts': 1,
            'auto_scale_lr': dict(enable=True, base_batch_size=2),
            'train_dataloader.batch_size': 10,
            'train_dataloader.drop_last': True,
        },
        [('milestone', 9), (WARM_UP, 10)],
    ),
    # Without epochs, in which the last scheduler is never stepped; the second
    # milestone lies behind the end of its scheduler.
    (
        {
            'train_cfg': dict(_delete_=True, by_epoch=False, max_iters=20),
            'param_scheduler': [
                LINEAR,
                dict(
                    type='MultiStepLR',
                    by_epoch=False,
                    milestones=[10, 17],
                    begin=2,
                    end=18,
                ),
                dict(type='MultiStepLR', milestones=[1], end=2),
            ],
        },
        [('LinearLR ends', 5.5), ('milestone', 6), ('MultiStepLR ends', 9)],
    ),
    # An iteration is an update, and an epoch two of them.
    (
        {
            'train_cfg': dict(
                _delete_=True, type='UpdateTrainLoop', max_updates=15
            ),
            'train_dataloader.batch_sampler': dict(type='UpdateBatchSampler'),
            'optim_wrapper': dict(
                _delete_=True, optimizer=dict(type='SGD', lr=0.05)
            ),
            'default_hooks.total': dict(
                type='TotalBatchHook', total_batch_size=16
            ),
            'param_scheduler': [
                LINEAR,
                dict(type='MultiStepLR', milestones=[1, 9], gamma=0.5),
            ],
        },
        [('milestone', 2), ('LinearLR ends', 11)],
    ),
]


@pytest.mark.parametrize(('settings', 'marks'), SETTINGS)
def test_it_is_what_the_runner_does(settings, marks, tmp_path):
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.work_dir = str(tmp_path)
    cfg.train_dataloader.num_workers = 0
    cfg.merge_from_dict(settings)
    schedule = rehearse(cfg)
    assert schedule.marks == marks
    used = []

    def record(optimizer, *_):
        used.append(optimizer.param_groups[0]['lr'])

    with register_optimizer_step_pre_hook(record):
        build_runner(cfg).train()
    assert schedule.rates == used


@pytest.mark.parametrize(
    ('images', 'option', 'message'),
    [
        (320, 'default_hooks.a.type=TotalBatchHook', 'least changed first'),
        (1, 'train_dataloader.drop_last=True', '1 images make no iteration'),
        (9, 'auto_scale_lr.enable=True', 'ignores accumulative_counts=2'),
    ],
)
def test_refused(images, option, message):
    words = [str(TINY_CONFIG), '--gpus', '3', '--images', str(images)]
    words += ['--cfg-options', option, 'auto_scale_lr.base_batch_size=4']
    with pytest.raises(MegDetError, match=message):
        plot_schedule.main(words)


def test_figure(tmp_path, monkeypatch):
    out = tmp_path / 'new' / 'a.png'
    words = [str(TINY_CONFIG), '--images', '9']
    plot_schedule.main([*words, '--out', str(out)])
    assert cv2.imread(str(out)).shape[1] == 1500
    monkeypatch.setenv('COCO_ROOT', '/nowhere')
    with pytest.raises(MegDetError, match=r'train2017\.json.*--images N'):
        plot_schedule.main([str(RECIPE)])
