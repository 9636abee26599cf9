# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmdet_megdet.errors import CheckpointError
from tests.data.faults_run import train
from tests.data.tiny_run import log_of

WARMUP = dict(type='PreciseLinearWarmup', start_factor=0.1, end=10)
STEPS = dict(type='MultiStepLR', end=4, milestones=[3], gamma=0.1)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory) -> Path:
    """What a run of one epoch has written."""
    folder = tmp_path_factory.mktemp('trained')
    train(folder, train_cfg__max_epochs=1)
    return folder / 'epoch_1.pth'


def resume(tmp_path, checkpoint, **settings) -> tuple:
    """Return the runner, and what the hook has logged."""
    settings |= dict(resume=True, load_from=str(checkpoint))
    runner = train(tmp_path, **settings)
    lines = log_of(tmp_path).splitlines()
    start = next(
        (n for n, line in enumerate(lines) if 'ResumeReportHook' in line),
        len(lines),
    )
    end = start + 1
    while end < len(lines) and ' WARNING ' not in lines[end]:
        end += 1
    return runner, '\n'.join(lines[start:end])


def test_nothing_changed_nothing_said(tmp_path, checkpoint):
    assert resume(tmp_path, checkpoint, train_cfg__max_epochs=1)[1] == ''


def test_what_is_taken_from_where(tmp_path, checkpoint):
    runner, text = resume(
        tmp_path,
        checkpoint,
        train_cfg__max_epochs=2,
        optim_wrapper__optimizer__lr=0.01,
        optim_wrapper__optimizer__weight_decay=0.5,
        param_scheduler=[
            WARMUP,
            dict(STEPS, end=7, milestones=[2, 4], gamma=0.5),
        ],
        randomness__seed=8,
        model__norm_cfg__eps=0.001,
        # Of no effect on a training.
        train_dataloader__persistent_workers=False,
    )
    of_state, of_config = text.split("these are today's config's")
    assert [line.strip() for line in of_state.splitlines()[1:]] == [
        'optim_wrapper.optimizer.lr: 0.05 -> 0.01',
        'optim_wrapper.optimizer.weight_decay: 0 -> 0.5',
        'param_scheduler.1.end: 4 -> 7',
        'param_scheduler.1.gamma: 0.1 -> 0.5',
        'param_scheduler.1.milestones: [3] -> [2, 4]',
        'randomness.seed: 7 -> 8',
    ]
    assert 'train_cfg.max_epochs: 1 -> 2' in of_config
    assert 'model.norm_cfg.eps: not set -> 0.001' in of_config
    assert 'persistent_workers' not in text
    # And so it is.
    (group,) = runner.optim_wrapper.param_groups
    assert (group['initial_lr'], group['weight_decay']) == (0.05, 0)
    _, steps = runner.param_schedulers
    assert (list(steps.milestones), steps.gamma, steps.end) == ([3], 0.1, 4)
    assert (runner.seed, runner.max_epochs) == (7, 2)
    assert runner.model.norm.eps == 0.001


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(param_scheduler=[WARMUP, STEPS, STEPS]), r'3 .* state of 2'),
        (dict(param_scheduler=[WARMUP]), r'1 .*\(PreciseLinearWarmup\)'),
        (dict(param_scheduler=None), r'0 .*\(none\)'),
        (
            dict(param_scheduler=[WARMUP, dict(type='StepLR', step_size=2)]),
            r"param_scheduler\.1\.type is 'StepLR'.*'MultiStepLR' in that of",
        ),
        (
            dict(optim_wrapper__optimizer__type='RMSprop'),
            r"optimizer\.type is 'RMSprop'.*'SGD' in that of the checkpoint",
        ),
        (
            dict(
                optim_wrapper__paramwise_cfg=dict(bias_lr_mult=2),
            ),
            r'6 parameters in 6 group\(s\).*checkpoint 6 in 1',
        ),
    ],
)
def test_states_of_something_else(tmp_path, checkpoint, settings, message):
    with pytest.raises(CheckpointError, match=message) as error:
        resume(tmp_path, checkpoint, **settings)
    assert 'load_from without resume' in str(error.value)


def test_without_a_config_states_are_compared(tmp_path, checkpoint):
    content = torch.load(checkpoint)
    content['meta'].pop('cfg')
    content['message_hub']['runtime_info'].pop('cfg')
    content.pop('optimizer')
    path = tmp_path / 'crafted.pth'
    torch.save(content, path)
    schedulers = [WARMUP, dict(STEPS, gamma=0.5)]
    resume(tmp_path, path, param_scheduler=schedulers, train_cfg__max_epochs=1)
    log = log_of(tmp_path)
    assert "crafted.pth holds no config to compare with today's" in log
    assert "crafted.pth does not hold the optimizer's state" in log
    assert 'param_scheduler.1.gamma: 0.1 -> 0.5' in log
