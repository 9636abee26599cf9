# Copyright (c) mmdet_megdet contributors. All rights reserved.
import datetime
import enum
import inspect
from collections import OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.registry import DATASETS, OPTIMIZERS, PARAM_SCHEDULERS
from mmdet.utils import register_all_modules
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim import OptimWrapper, _ParamScheduler
from mmengine.runner.checkpoint import CheckpointLoader

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults import readable_checkpoint
from mmdet_megdet.faults.readable_checkpoint import readable
from tests.data.faults_run import train
from tests.data.faulty_task import DiaryHook
from tests.data.tiny_run import log_of
from tests.data.tiny_task import TinyImages

register_all_modules(init_default_scope=False)
POINT = namedtuple('POINT', 'x y')(1, 2)


class Color(str, enum.Enum):
    RED = 'red'


class Stranger:
    """A class that nobody allowed."""


def there_and_back(tmp_path, value):
    """Write as the hook does, read as MMEngine does."""
    path = tmp_path / 'checkpoint.pth'
    torch.save(dict(value=readable(value)), path)
    return CheckpointLoader.load_checkpoint(str(path), 'cpu')['value']


@pytest.mark.parametrize(('value', 'expected'), [
    (ConfigDict(a=[(1, ConfigDict(b=2))]), dict(a=[(1, dict(b=2))])),
    (defaultdict(list, a=[1]), dict(a=[1])),
    (POINT, (1, 2)),
    (deque([1, 'a']), [1, 'a']),
    (frozenset({1}), {1}),
    (Color.RED, 'red'),
    (Path('a/b'), 'a/b'),
    (np.str_('text'), 'text'),
    (np.array([dict(a=np.str_('b')), None]), [dict(a='b'), None]),
    (np.array(2, 'int16'), np.array(2, 'int16')),
    ({('a', 1): {Color.RED: b'x'}}, {('a', 1): {'red': b'x'}}),
    (torch.Size([2]), torch.Size([2])),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_comes_back_plain(tmp_path, value, expected):
    found = there_and_back(tmp_path, [value])[0]
    assert found == expected
    assert type(found) is type(expected)


def test_a_state_dict_keeps_its_versions_and_tensors():
    state = torch.nn.BatchNorm1d(2).state_dict()
    state['extra'] = Color.RED
    found = readable(state)
    assert (type(found), found['extra']) == (OrderedDict, 'red')
    assert found._metadata == state._metadata
    assert found['weight'] is state['weight']


def test_numbers_are_not_tried_one_by_one(monkeypatch):
    """A long training's log has thousands, in arrays of up to a million."""
    tried = []
    monkeypatch.setattr(readable_checkpoint, '_reads_back', tried.append)
    monkeypatch.setattr(HistoryBuffer, '_statistics_methods', {})
    numbers = [np.float64(1), np.bool_(1), np.arange(3, dtype='>u2')]
    assert readable(numbers) == numbers
    buffer = HistoryBuffer([1.0], [1])
    HistoryBuffer._statistics_methods.clear()
    assert readable(buffer) is buffer
    assert tried == []


@pytest.mark.parametrize(('content', 'message'), [
    (dict(a=[Stranger()]), r'a\[0\] back, which is tests.*Stranger'),
    (dict(shape=lambda t: t), r'shape back, which is builtins.function'),
    (dict(other={Stranger(): 1}), r'with the key <.* of other back'),
    (dict(when=np.datetime64('2020-01-02')), 'which is numpy.datetime64'),
])  # fmt: skip
def test_what_would_not_come_back_is_named(content, message):
    with pytest.raises(CheckpointError, match=message):
        readable(content)


def registered(registry, base: type) -> dict[str, type]:
    """Those in mmdet's registry, and in MMEngine's above it; no test's."""
    kinds = registry.parent.module_dict | registry.module_dict
    return {
        name: kind
        for name, kind in kinds.items()
        if issubclass(kind, base) and not kind.__module__.startswith('tests')
    }


SCHEDULERS = registered(PARAM_SCHEDULERS, _ParamScheduler)
# Each takes those that it knows.
ARGUMENTS = dict(T_max=8, end=6, eta_max=1.0, eta_min=0.0, gamma=0.9, hold=2)
ARGUMENTS |= dict(milestones=[2, 4, 4], monitor='loss', patience=0)
ARGUMENTS |= dict(periods=[4], restart_weights=[1], step_size=2, total_steps=9)


def scheduler_of(name: str):
    weight = torch.nn.Parameter(torch.ones(2))
    wrapper = OptimWrapper(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    names = {
        argument
        for kind in SCHEDULERS[name].__mro__
        for argument in inspect.signature(kind).parameters
    }
    arguments = {k: v for k, v in ARGUMENTS.items() if k in names}
    if name.endswith('ParamScheduler'):
        arguments['param_name'] = 'lr'
    return SCHEDULERS[name](wrapper, **arguments)


@pytest.mark.parametrize('name', sorted(SCHEDULERS))
def test_every_schedulers_state_comes_back(tmp_path, name):
    scheduler = scheduler_of(name)
    for loss in (3, 2, 2, 2):
        scheduler.optimizer.step()
        plateau = 'ReduceOnPlateau' in name
        scheduler.step(*[{'loss': np.float64(loss)}] * plateau)
    state = scheduler.state_dict()
    loaded = there_and_back(tmp_path, state)
    assert loaded == state
    scheduler_of(name).load_state_dict(loaded)


OPTIMIZER_KINDS = registered(OPTIMIZERS, torch.optim.Optimizer)
# No kind of its own, and one that needs a process group.
OTHERWISE = {'Optimizer', 'ZeroRedundancyOptimizer'}


@pytest.mark.parametrize('name', sorted(OPTIMIZER_KINDS.keys() - OTHERWISE))
def test_every_optimizers_state_comes_back(tmp_path, name):
    layer = torch.nn.Embedding(4, 3, sparse=name == 'SparseAdam')
    optimizer = OPTIMIZER_KINDS[name](layer.parameters(), lr=0.1)

    def closure():
        loss = layer(torch.tensor([0, 2])).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = OptimWrapper(optimizer).state_dict()
    loaded = there_and_back(tmp_path, state)
    torch.testing.assert_close(loaded, state, rtol=0, atol=0)


def test_every_data_sets_metainfo_comes_back():
    kinds = DATASETS.module_dict
    infos = {n: getattr(k, 'METAINFO', {}) for n, k in kinds.items()}
    assert infos['CocoDataset']['classes'][0] == 'person'
    readable(infos)


def test_a_run_goes_on_from_what_it_wrote(tmp_path, monkeypatch):
    info = dict(classes=('noise',), parts=[ConfigDict(a=dict(b=1))])
    monkeypatch.setattr(TinyImages, 'metainfo', info)
    one_cycle = dict(eta_max=0.1, total_steps=24, by_epoch=False)
    settings = dict(param_scheduler=[dict(type='OneCycleLR', **one_cycle)])
    once = train(tmp_path, **settings)
    path = str(tmp_path / 'epoch_1.pth')
    resumed = train(tmp_path, resume=True, load_from=path, **settings)
    log = log_of(tmp_path)
    assert 'metainfo from the resumed checkpoint is' not in log
    states = (run.model.state_dict() for run in (resumed, once))
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert resumed.optim_wrapper.get_lr() == once.optim_wrapper.get_lr()


def test_refused_before_training(tmp_path, monkeypatch):
    info = dict(made=datetime.date(2020, 1, 2))
    monkeypatch.setattr(TinyImages, 'metainfo', info)
    told = r'with meta\.dataset_meta\.made back, .*datetime.*resumed=False'
    with pytest.raises(CheckpointError, match=told):
        train(tmp_path)
    assert not (tmp_path / 'diary_0.txt').exists()


def test_refused_before_the_first_writing(tmp_path, monkeypatch):
    def add_date(_, runner, checkpoint):
        checkpoint['meta']['date'] = datetime.date(2020, 1, 2)

    monkeypatch.setattr(DiaryHook, 'before_save_checkpoint', add_date)
    with pytest.raises(CheckpointError, match=r'with meta\.date back'):
        train(tmp_path)
    assert not list(tmp_path.glob('*.pth*'))
