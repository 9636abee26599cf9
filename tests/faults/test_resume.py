# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import MultiStepLR, OptimWrapper, OptimWrapperDict

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults import resume
from mmdet_megdet.faults.resume import Change
from tests.data.faults_run import train
from tests.data.tiny_run import log_of

# The parts.

COMMON = dict(
    optim_wrapper=dict(optimizer=dict(type='SGD')),
    param_scheduler=dict(type='MultiStepLR'),
)


def changes(saved: dict, today: dict) -> list[Change] | None:
    texts = [Config(COMMON | c).pretty_text for c in (saved, today)]
    return resume.config_changes(*texts)


@pytest.mark.parametrize(
    ('saved', 'today'),
    [
        ({}, {}),
        # Places, names for parts, and what has no effect on training.
        (dict(work_dir='a'), dict(work_dir='b')),
        (dict(train_dataloader=dict(dataset=dict(data_root='a'))), {}),
        (dict(pipeline=[1], log_level='INFO'), dict(pipeline=[2])),
        (dict(val_dataloader=dict(num_workers=1)), {}),
        ({}, dict(default_hooks=dict(resume_report=dict(type='A')))),
        # One scheduler in either spelling.
        ({}, dict(param_scheduler=[dict(type='MultiStepLR')])),
    ],
)
def test_what_does_not_matter_is_left_out(saved, today):
    assert changes(saved, today) == []


def test_what_matters_first():
    found = changes(
        dict(default_hooks=dict(a=1), model=dict(b=[1, 2])),
        dict(default_hooks=dict(a=2), model=dict(b=[1, 3], c='d')),
    )
    assert found == [
        Change('model.b.1', '2', '3'),
        Change('model.c', 'not set', "'d'"),
        Change('default_hooks.a', '1', '2'),
    ]


@pytest.mark.parametrize(
    'text', [None, '', '(', 'a = 1', "optim_wrapper_ = 'b'"]
)
def test_no_training_config(text):
    today = Config(COMMON).pretty_text
    assert resume.config_changes(text, today) is None


@pytest.mark.parametrize(
    ('key', 'saved', 'today'),
    [
        ('param_scheduler.0.type', "'StepLR'", "'MultiStepLR'"),
        ('param_scheduler.gan.0.type', "'StepLR'", "'MultiStepLR'"),
        ('optim_wrapper.gan.optimizer.type', "'SGD'", "'Adam'"),
    ],
)
def test_other_kinds_are_refused(key, saved, today):
    with pytest.raises(CheckpointError, match=key):
        resume.check_kinds([Change(key, saved, today)])


def test_the_same_kinds_by_another_name():
    resume.check_kinds(
        [
            Change('param_scheduler.0.type', "'StepLR'", "'a.StepLR'"),
            Change('param_scheduler.0.type', 'not set', "'MultiStepLR'"),
            Change('model.type', "'RetinaNet'", "'FCOS'"),
            Change('optim_wrapper.type', "'A'", "'AmpOptimWrapper'"),
        ]
    )


def two_optimizers(lr: float, milestones: list[int]) -> tuple:
    wrappers = OptimWrapperDict(
        **{
            name: OptimWrapper(torch.optim.Adam([torch.ones(1)], lr=lr))
            for name in ('generator', 'critic')
        }
    )
    steps = MultiStepLR(wrappers['critic'], milestones=milestones)
    return wrappers, {'critic': [steps]}


def test_several_optimizers():
    wrappers, schedulers = two_optimizers(0.1, [2, 3])
    states = {n: [s.state_dict() for s in g] for n, g in schedulers.items()}
    state = wrappers.state_dict()
    wrappers, schedulers = two_optimizers(0.2, [2])
    assert resume.optimizer_changes(state, wrappers) == [
        Change('optim_wrapper.generator.optimizer.lr', '0.1', '0.2'),
        Change('optim_wrapper.critic.optimizer.lr', '0.1', '0.2'),
    ]
    assert resume.scheduler_changes(states, schedulers) == [
        Change('param_scheduler.critic.0.milestones', '[2, 3]', '[2]')
    ]
    for other in ({}, states['critic'], None):
        with pytest.raises(CheckpointError, match=r'1 .* for critic .* of 0'):
            resume.scheduler_changes(other, schedulers)
    with pytest.raises(CheckpointError, match='optimizer critic has'):
        resume.optimizer_changes(dict(generator=state['generator']), wrappers)


def test_many_changes_are_cut_short():
    many = [Change(f'model.{n}', '1', '2') for n in range(20)]
    text = resume.report('a.pth', [], many)
    assert text.count('->') == 13  # one explains the arrow
    assert text.endswith('and 8 more')
    assert resume.report('a.pth', [], []) is None


# In the Runner.

WARMUP = dict(type='PreciseLinearWarmup', start_factor=0.1, end=10)
STEPS = dict(type='MultiStepLR', end=4, milestones=[3], gamma=0.1)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory) -> Path:
    """What a run of one epoch has written."""
    folder = tmp_path_factory.mktemp('trained')
    train(folder, train_cfg__max_epochs=1)
    return folder / 'epoch_1.pth'


def go_on(tmp_path, checkpoint, **settings) -> tuple:
    """Return the runner, and what the hook has logged."""
    settings |= dict(resume=True, load_from=str(checkpoint))
    runner = train(tmp_path, **settings)
    _, _, text = log_of(tmp_path).partition('ResumeReportHook')
    return runner, text.partition(' WARNING ')[0]


def test_nothing_changed_nothing_said(tmp_path, checkpoint):
    assert go_on(tmp_path, checkpoint, train_cfg__max_epochs=1)[1] == ''


def test_what_is_taken_from_where(tmp_path, checkpoint):
    runner, text = go_on(
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
            dict(optim_wrapper__paramwise_cfg=dict(bias_lr_mult=2)),
            r'6 parameters in 6 group\(s\).*checkpoint 6 in 1',
        ),
    ],
)
def test_states_of_something_else(tmp_path, checkpoint, settings, message):
    with pytest.raises(CheckpointError, match=message) as error:
        go_on(tmp_path, checkpoint, **settings)
    assert 'load_from without resume' in str(error.value)


def test_without_a_config_states_are_compared(tmp_path, checkpoint):
    content = torch.load(checkpoint)
    content['meta'].pop('cfg')
    content['message_hub']['runtime_info'].pop('cfg')
    content.pop('optimizer')
    path = tmp_path / 'crafted.pth'
    torch.save(content, path)
    schedulers = [WARMUP, dict(STEPS, gamma=0.5)]
    go_on(tmp_path, path, param_scheduler=schedulers, train_cfg__max_epochs=1)
    log = log_of(tmp_path)
    assert "crafted.pth holds no config to compare with today's" in log
    assert "crafted.pth does not hold the optimizer's state" in log
    assert 'param_scheduler.1.gamma: 0.1 -> 0.5' in log
