# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import datetime
import enum
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.registry import DATASETS, OPTIMIZERS, PARAM_SCHEDULERS
from mmdet.utils import register_all_modules
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.optim import OptimWrapper, _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.registry import OPTIMIZERS as ROOT_OPTIMIZERS
from mmengine.registry import PARAM_SCHEDULERS as ROOT_PARAM_SCHEDULERS
from mmengine.runner.checkpoint import CheckpointLoader

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults.readable_checkpoint import check_readable, plain
from tests.data.faults_run import train
from tests.data.tiny_run import log_of
from tests.data.tiny_task import TinyImages

register_all_modules(init_default_scope=False)
POINT = namedtuple('POINT', 'x y')(1, 2)


class Color(str, enum.Enum):
    RED = 'red'


class Stranger:
    """A class that nobody allowed."""


def there_and_back(tmp_path, content):
    """Write as the hook does, read as MMEngine does."""
    content = {key: plain(value) for key, value in content.items()}
    check_readable(content, 'test')
    path = tmp_path / 'checkpoint.pth'
    torch.save(content, path)
    return CheckpointLoader.load_checkpoint(str(path), 'cpu', logger='silent')


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        (ConfigDict(a=[(1, ConfigDict(b=2))]), dict(a=[(1, dict(b=2))])),
        (defaultdict(list, a=[1]), dict(a=[1])),
        (Counter(a=2), Counter(a=2)),
        (POINT, (1, 2)),
        (deque([1, 'a']), [1, 'a']),
        (range(3), [0, 1, 2]),
        (frozenset({1}), {1}),
        (Color.RED, 'red'),
        (Path('a/b'), 'a/b'),
        (np.str_('text'), 'text'),
        (np.array(['a', 'b']), ['a', 'b']),
        (np.array([dict(a=np.str_('b')), None]), [dict(a='b'), None]),
        (np.float64(0.1), np.float64(0.1)),
        (np.array(2, 'int16'), np.array(2, 'int16')),
        ({('a', 1): {Color.RED: b'x'}}, {('a', 1): {'red': b'x'}}),
        (torch.Size([2]), torch.Size([2])),
        (torch.float16, torch.float16),
    ],
    ids=lambda value: type(value).__name__,
)
def test_comes_back_plain(tmp_path, value, expected):
    found = there_and_back(tmp_path, dict(value=[value]))['value'][0]
    assert found == expected
    assert type(found) is type(expected)


def test_what_is_plain_stays_itself():
    """A model's state_dict has its _metadata as an attribute."""
    state = torch.nn.BatchNorm1d(2).state_dict()
    content = OrderedDict(state=state, numbers=[1, (2.0, {'a'})])
    assert plain(content) is content
    state['extra'] = Color.RED
    changed = plain(state)
    assert changed['extra'] == 'red'
    assert changed._metadata == state._metadata


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (
            dict(meta=dict(dataset_meta=dict(made=datetime.date(2020, 1, 2)))),
            r'meta.dataset_meta.made is datetime.date .*metainfo',
        ),
        (
            dict(message_hub=dict(runtime_info=dict(a=[Stranger()]))),
            r'runtime_info.a\[0\] is tests.*Stranger.*resumed=False',
        ),
        (
            dict(param_schedulers=[dict(shape=lambda t: t)]),
            r'param_schedulers\[0\].shape is builtins.function',
        ),
        (dict(other={Stranger(): 1}), r'the key <.* of other is'),
        (dict(when=np.datetime64('2020-01-02')), 'when is numpy.datetime64'),
        (dict(each=[Stranger() for _ in range(9)]), 'and 4 more'),
    ],
)
def test_what_would_not_come_back_is_named(content, message):
    with pytest.raises(CheckpointError, match=message):
        check_readable(plain(content), 'test')


def test_statistics_of_ones_own_would_not_come_back(monkeypatch):
    class OwnBuffer(HistoryBuffer):
        pass

    buffer = HistoryBuffer()
    check_readable(dict(buffer=buffer), 'test')
    with pytest.raises(CheckpointError, match='OwnBuffer'):
        check_readable(dict(buffer=OwnBuffer()), 'test')
    # Of the class, as register_statistics does it.
    methods = buffer._statistics_methods
    monkeypatch.setitem(methods, 'own', lambda self: 0)
    with pytest.raises(CheckpointError, match=r'buffer\.\w+_methods\.own is'):
        check_readable(dict(buffer=buffer), 'test')


def registered(*registries, base: type) -> dict[str, type]:
    return {
        name: kind
        for registry in registries
        for name, kind in registry.module_dict.items()
        if issubclass(kind, base)
    }


SCHEDULERS = registered(
    ROOT_PARAM_SCHEDULERS, PARAM_SCHEDULERS, base=_ParamScheduler
)
ARGUMENTS = {
    'CosineAnnealing': dict(T_max=8),
    'CosineRestart': dict(
        periods=[4, 8], restart_weights=[1, 0.5], eta_min=0.0
    ),
    'Exponential': dict(gamma=0.9),
    'MultiStep': dict(milestones=[2, 4, 4]),
    'OneCycle': dict(eta_max=1.0, total_steps=10, anneal_strategy='linear'),
    'PreciseTwoStageWarmup': dict(hold=2, end=6, by_epoch=False),
    'Precise': dict(end=6, by_epoch=False),
    'Quadratic': dict(end=6, by_epoch=False),
    'ReduceOnPlateau': dict(monitor='loss', patience=0),
    'Step': dict(step_size=2),
}


def scheduler_of(name: str):
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [dict(params=[weights[0]]), dict(params=[weights[1]], lr=0.05)],
        lr=0.1,
        momentum=0.9,
    )
    arguments = next(
        (a for start, a in ARGUMENTS.items() if name.startswith(start)), {}
    )
    if name.endswith('ParamScheduler'):
        arguments = dict(arguments, param_name='lr')
    wrapper = OptimWrapper(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return SCHEDULERS[name](wrapper, **arguments), wrapper


def step(scheduler, wrapper, loss: float) -> list:
    wrapper.step()
    if 'ReduceOnPlateau' in type(scheduler).__name__:
        scheduler.step({'loss': np.float64(loss)})
    else:
        scheduler.step()
    return [
        [group[key] for key in ('lr', 'momentum')]
        for group in wrapper.param_groups
    ]


@pytest.mark.parametrize('name', sorted(SCHEDULERS))
def test_every_scheduler_goes_on(tmp_path, name):
    """Where a copy that was never written goes on, value for value."""
    scheduler, wrapper = scheduler_of(name)
    for loss in (3, 2, 2, 2):
        step(scheduler, wrapper, loss)
    loaded = there_and_back(
        tmp_path,
        dict(
            optimizer=wrapper.state_dict(),
            param_schedulers=[scheduler.state_dict()],
        ),
    )
    resumed, resumed_wrapper = scheduler_of(name)
    resumed_wrapper.load_state_dict(loaded['optimizer'])
    resumed.load_state_dict(loaded['param_schedulers'][0])
    for loss in (2, 2, 1, 1):
        expected = step(scheduler, wrapper, loss)
        assert step(resumed, resumed_wrapper, loss) == expected


OPTIMIZER_KINDS = registered(
    ROOT_OPTIMIZERS, OPTIMIZERS, base=torch.optim.Optimizer
)
# Not a kind of its own, and one that needs a process group.
for _name in ('Optimizer', 'ZeroRedundancyOptimizer'):
    OPTIMIZER_KINDS.pop(_name, None)


def optimizer_of(name: str):
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2, bias=False)
    if name == 'SparseAdam':
        layer = torch.nn.Embedding(4, 3, sparse=True)
    return layer, OPTIMIZER_KINDS[name](layer.parameters(), lr=0.1)


def update(layer, optimizer) -> None:
    def closure():
        optimizer.zero_grad()
        is_sparse = isinstance(layer, torch.nn.Embedding)
        loss = layer(torch.tensor([0, 2]) if is_sparse else torch.ones(1, 3))
        loss = loss.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize('name', sorted(OPTIMIZER_KINDS))
def test_every_optimizer_goes_on(tmp_path, name):
    layer, optimizer = optimizer_of(name)
    for _ in range(2):
        update(layer, optimizer)
    content = dict(
        state_dict=layer.state_dict(),
        optimizer=OptimWrapper(optimizer).state_dict(),
    )
    loaded = there_and_back(tmp_path, content)
    resumed, resumed_optimizer = optimizer_of(name)
    resumed.load_state_dict(loaded['state_dict'])
    OptimWrapper(resumed_optimizer).load_state_dict(loaded['optimizer'])
    for _ in range(2):
        update(layer, optimizer)
        update(resumed, resumed_optimizer)
        torch.testing.assert_close(
            resumed.weight, layer.weight, rtol=0, atol=0
        )


def test_every_data_sets_metainfo_comes_back():
    kinds = DATASETS.module_dict
    infos = {n: getattr(k, 'METAINFO', {}) for n, k in kinds.items()}
    assert infos['CocoDataset']['classes'][0] == 'person'
    check_readable(plain(infos), 'test')


def test_message_hub_comes_back(tmp_path):
    hub = MessageHub('what_comes_back')
    hub.update_scalar('train/loss', 1.5)
    info = dict(
        score=np.float32(0.5),
        table=ConfigDict(ap=[np.int64(1), np.array([0.5])]),
        names=('a', Color.RED),
    )
    hub.update_info_dict(info)
    loaded = there_and_back(tmp_path, dict(message_hub=hub.state_dict()))
    other = MessageHub('what_came_back')
    other.load_state_dict(loaded['message_hub'])
    assert other.get_scalar('train/loss').current() == 1.5
    assert other.get_info('score') == np.float32(0.5)
    assert other.get_info('table') == dict(ap=[1, np.array([0.5])])
    assert other.get_info('names') == ('a', 'red')


def test_stock_files_come_back(tmp_path):
    """As MMEngine alone has written them."""
    scheduler, _ = scheduler_of('OneCycleLR')
    path = tmp_path / 'stock.pth'
    meta = ConfigDict(classes=('a',), nested=dict(a=[ConfigDict(b=1)]))
    torch.save(dict(meta=meta, state=scheduler.state_dict()), path)
    loaded = CheckpointLoader.load_checkpoint(str(path), logger='silent')
    assert loaded['meta'] == dict(classes=('a',), nested=dict(a=[dict(b=1)]))
    assert type(loaded['meta']['nested']['a'][0]) is dict
    assert loaded['state']['anneal_func'] is scheduler.anneal_func


# In the Runner.

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
