# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import MultiStepLR, OptimWrapper, OptimWrapperDict

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults import resume
from mmdet_megdet.faults.resume import Change

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
def test_no_noise(saved, today):
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


@pytest.mark.parametrize('text', ['', '(', 'a = 1', "optim_wrapper_ = 'b'"])
def test_no_training_config(text):
    today = Config(COMMON).pretty_text
    assert resume.config_changes(text, today) is None


@pytest.mark.parametrize(
    ('key', 'saved', 'today', 'refused'),
    [
        ('param_scheduler.0.type', "'StepLR'", "'MultiStepLR'", True),
        ('param_scheduler.gan.0.type', "'StepLR'", "'MultiStepLR'", True),
        ('optim_wrapper.gan.optimizer.type', "'SGD'", "'Adam'", True),
        ('param_scheduler.0.type', "'MultiStepLR'", "'a.MultiStepLR'", False),
        ('param_scheduler.0.type', 'not set', "'MultiStepLR'", False),
        ('model.type', "'RetinaNet'", "'FCOS'", False),
        ('optim_wrapper.type', "'OptimWrapper'", "'AmpOptimWrapper'", False),
    ],
)
def test_kinds(key, saved, today, refused):
    every = [Change(key, saved, today)]
    if refused:
        with pytest.raises(CheckpointError, match=key):
            resume.check_kinds(every)
    else:
        resume.check_kinds(every)


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
