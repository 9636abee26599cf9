# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import datetime

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmdet_megdet.errors import CheckpointError
from tests.data.faults_run import train
from tests.data.tiny_run import log_of
from tests.data.tiny_task import TinyImages

ONE_CYCLE = [
    dict(type='OneCycleLR', eta_max=0.1, total_steps=24, by_epoch=False)
]


@HOOKS.register_module(force=True)
class LateDateHook(Hook):
    """Notes what no checkpoint can hold, when a checkpoint is written."""

    def before_save_checkpoint(self, runner, checkpoint):
        checkpoint['meta']['date'] = datetime.date(2020, 1, 2)


@pytest.mark.parametrize('atomic', ['Atomic', ''])
def test_a_run_goes_on_from_what_it_wrote(tmp_path, monkeypatch, atomic):
    info = dict(classes=('noise',), parts=[ConfigDict(a=dict(b=1))])
    monkeypatch.setattr(TinyImages, 'metainfo', info)
    settings = dict(
        param_scheduler=ONE_CYCLE,
        default_hooks__checkpoint__type=f'{atomic}CheckpointHook',
        default_hooks__preemption=None,
    )
    train(tmp_path / 'once', **settings)
    saved = torch.load(tmp_path / 'once' / 'epoch_1.pth')
    assert type(saved['meta']['dataset_meta']['parts'][0]) is dict
    path = str(tmp_path / 'once' / 'epoch_1.pth')
    train(tmp_path / 'resumed', resume=True, load_from=path, **settings)
    log = log_of(tmp_path / 'resumed')
    assert 'metainfo from the resumed checkpoint is' not in log
    ends = [
        torch.load(tmp_path / name / 'epoch_3.pth')
        for name in ('once', 'resumed')
    ]
    once, resumed = (end['state_dict'] for end in ends)
    torch.testing.assert_close(resumed, once, rtol=0, atol=0)
    assert ends[1]['param_schedulers'] == ends[0]['param_schedulers']


def test_refused_before_training(tmp_path, monkeypatch):
    info = dict(made=datetime.date(2020, 1, 2))
    monkeypatch.setattr(TinyImages, 'metainfo', info)
    with pytest.raises(CheckpointError) as error:
        train(tmp_path)
    assert 'before training' in str(error.value)
    assert 'meta.dataset_meta.made is datetime.date' in str(error.value)
    assert not list(tmp_path.glob('*.pth*'))


def test_refused_before_the_first_writing(tmp_path):
    with pytest.raises(CheckpointError, match=r'meta\.date is datetime\.date'):
        train(tmp_path, custom_hooks=[dict(type='LateDateHook')])
    assert not list(tmp_path.glob('*.pth*'))
