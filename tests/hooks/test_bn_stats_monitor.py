# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The monitor in the stock Runner, on one process."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import BNStatsError, BNStatsMonitorHook
from tests.data.bn_stack import LAYERS, lines, stack_config, train_stack
from tests.data.tiny_run import log_of

INTERVAL = 'default_hooks__bn_stats__interval'


@HOOKS.register_module(force=True)
class Meddle(Hook):
    """Calls a function of the test's after each iteration."""

    priority = 'VERY_LOW'
    what = staticmethod(lambda runner: None)

    def after_train_iter(self, runner, *args, **kwargs):
        self.what(runner)


@pytest.fixture
def meddle(monkeypatch):
    """Sets what is done after each iteration."""

    def use(what):
        monkeypatch.setattr(Meddle, 'what', staticmethod(what))
        return [dict(type='Meddle')]

    return use


def scalars(work_dir):
    (path,) = work_dir.glob('*/vis_data/scalars.json')
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_where_the_numbers_go(tmp_path, meddle):
    """Local files and TensorBoard's event file say the same."""
    kept = []

    def note(runner):
        kept.append(dict(runner.message_hub._resumed_keys))

    cfg = stack_config(tmp_path, custom_hooks=meddle(note))
    cfg.visualizer = dict(
        type='Visualizer',
        vis_backends=[
            dict(type='LocalVisBackend'),
            dict(type='TensorboardVisBackend'),
        ],
    )
    train_stack(cfg)
    records = lines(tmp_path)
    # The first of the run, then every second.
    assert [line['iter'] for line in records] == [1, 2, 4, 6]
    assert [line['epoch'] for line in records] == [1, 1, 2, 2]
    for line in records:
        assert line['version'] == 1
        assert line['world_size'] == 1
        assert line['images_per_gpu'] == 2
        assert line['seconds']['iteration'][0] > 0
        assert line['seconds']['collectives'] == [0]
        assert line['plan']['total_batch_size'] == 2
        for row in line['layers']:
            assert (row['state'], row['count']) == ('alone', 128)
            assert row['between_share'] is None

    (events,) = tmp_path.glob('*/vis_data/events*')
    read = EventAccumulator(str(events))
    read.Reload()
    by_step = {
        line['step']: line
        for line in scalars(tmp_path)
        if 'bn/norms.stem/mean_drift' in line
    }
    assert sorted(by_step) == [1, 2, 4, 6]
    for name in LAYERS:
        for what in ('mean_drift', 'var_drift', 'running_var_max'):
            tag = f'bn/norms.{name}/{what}'
            found = {e.step: e.value for e in read.Scalars(tag)}
            assert sorted(found) == [1, 2, 4, 6]
            for line in records:
                (row,) = [
                    r for r in line['layers'] if r['name'] == f'norms.{name}'
                ]
                step = line['iter']
                # The event file holds float32, the record six digits.
                assert found[step] == pytest.approx(row[what], rel=1e-5)
                assert by_step[step][tag] == pytest.approx(row[what], rel=1e-5)
    # Aggregates come with the log line, which repeats the latest.
    drift = [e.value for e in read.Scalars('bn_mean_drift')]
    assert len(drift) == 6
    for line in records:
        rows = [row['mean_drift'] for row in line['layers']]
        assert drift[line['iter'] - 1] == pytest.approx(
            sum(rows) / 4, rel=1e-5
        )
    assert [e.value for e in read.Scalars('bn_findings')] == [0] * 6
    # Not saved in checkpoints.
    assert {k: v for k, v in kept[-1].items() if '/bn_' in k} == {
        'train/bn_mean_drift': False,
        'train/bn_findings': False,
    }
    assert 'bn_mean_drift: ' in log_of(tmp_path)


def test_a_run_that_resumes_continues_the_record(tmp_path):
    settings = dict(
        default_hooks__checkpoint__interval=1,
        train_cfg__max_epochs=2,
    )
    train_stack(stack_config(tmp_path, **settings))
    path = tmp_path / 'bn_stats.jsonl'
    assert [line['iter'] for line in lines(tmp_path)] == [1, 2, 4, 6]
    first = path.read_text().splitlines()[:2]
    # Killed in the middle of a line, after the checkpoint of iteration 3.
    path.write_text(path.read_text()[:-40])
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_1.pth'))
    settings['train_cfg__max_epochs'] = 3
    train_stack(stack_config(tmp_path, resume=True, **settings))
    # 4 is the first of the resumed run, and due besides.
    assert [line['iter'] for line in lines(tmp_path)] == [1, 2, 4, 6, 8]
    assert path.read_text().splitlines()[:2] == first
    # One that starts anew begins anew.
    settings['train_cfg__max_epochs'] = 1
    train_stack(stack_config(tmp_path, **settings))
    assert [line['iter'] for line in lines(tmp_path)] == [1, 2]


def test_a_finding_that_stays_is_logged_once(tmp_path, meddle):
    def kill_channel(runner):
        weight = runner.model.convs['second'].weight.data
        weight[0] = 0
        if runner.iter >= 3:
            weight[1] = 0

    def count():
        texts = log_of(tmp_path).splitlines()
        return [text for text in texts if 'dead-channels' in text]

    cfg = stack_config(
        tmp_path, **{INTERVAL: 1}, custom_hooks=meddle(kill_channel)
    )
    cfg.model.norm_eval = ['stem']
    train_stack(cfg)
    log = log_of(tmp_path)
    assert log.count('eval-mode: 1 layer in eval mode') == 1
    # In iterations 2 to 6; another channel is no other finding.
    assert len(count()) == 1
    assert '- WARNING - BNStatsMonitorHook: dead-channels: ' in count()[0]
    found = [
        [f['check'] for f in line['findings']] for line in lines(tmp_path)
    ]
    assert found == [['eval-mode']] + [['eval-mode', 'dead-channels']] * 5
    dead = [line['layers'][1]['dead_channels'] for line in lines(tmp_path)]
    assert dead == [0, 1, 1, 1, 2, 2]
    assert (
        'iteration 1: 4 BatchNorm layers, 1 eval, 3 alone; verdict: 1 '
        'warning(s).' in log
    )


@pytest.mark.parametrize('on_failure', ['warn', 'raise'])
def test_nan_with_one_process(tmp_path, meddle, on_failure):
    def break_third(runner):
        runner.model.convs['third'].bias.data[2] = torch.nan

    cfg = stack_config(
        tmp_path,
        **{INTERVAL: 1},
        default_hooks__bn_stats__on_failure=on_failure,
        custom_hooks=meddle(break_third),
    )
    if on_failure == 'raise':
        with pytest.raises(BNStatsError, match='first in the input of') as e:
            train_stack(cfg)
        (finding,) = e.value.findings
        assert finding.layers == ['norms.third']
        assert 'iteration 2: non-finite' in str(e.value)
        assert len(lines(tmp_path)) == 2
    else:
        train_stack(cfg)
        assert len(lines(tmp_path)) == 6
        found = [
            text
            for text in log_of(tmp_path).splitlines()
            if 'BNStatsMonitorHook: non-finite' in text
        ]
        # First the third layer's input, from then on the first's.
        assert ['- ERROR - ' in text for text in found] == [True] * len(found)
        assert len(found) == 2


def test_between_looks_the_model_is_left_alone(tmp_path, meddle):
    """And what it learns is the same as without the hook, bit for bit."""
    seen = []

    def note(runner):
        layers = list(runner.model.norms.values())
        seen.append(
            [layer.observer for layer in layers[:3]]
            + [len(layers[3]._forward_pre_hooks)]
        )

    def states(**settings):
        cfg = stack_config(tmp_path, custom_hooks=meddle(note), **settings)
        cfg.model.plain = ['fourth']
        return train_stack(cfg).model.state_dict()

    watched = states(**{INTERVAL: 1})
    assert seen == [[None, None, None, 0]] * 6
    alone = states(default_hooks__bn_stats=None)
    assert watched.keys() == alone.keys()
    for name, value in watched.items():
        assert torch.equal(value, alone[name]), name


def test_nothing_grows_with_the_iterations(tmp_path, meddle):
    sizes, tensors = {}, {}
    ours = [
        tracemalloc.Filter(True, f'*mmdet_megdet/{where}')
        for where in ('monitor/*', 'hooks/bn_stats_monitor.py')
    ]

    def measure(runner):
        if runner.iter in (20, 59):
            gc.collect()
            traces = tracemalloc.take_snapshot().filter_traces(ours).traces
            sizes[runner.iter] = sum(trace.size for trace in traces)
            tensors[runner.iter] = sum(
                issubclass(type(o), torch.Tensor) for o in gc.get_objects()
            )

    cfg = stack_config(
        tmp_path,
        **{INTERVAL: 1},
        custom_hooks=meddle(measure),
        train_cfg__max_epochs=20,
        default_hooks__logger__interval=1000,
    )
    tracemalloc.start()
    try:
        train_stack(cfg)
    finally:
        tracemalloc.stop()
    assert len(lines(tmp_path)) == 60
    assert sizes[20] > 0
    # 39 iterations' vectors alone would be 60 kB. (numpy keeps the memory of
    # small objects, some kB of it, to use it again.)
    assert sizes[59] - sizes[20] < 15_000
    assert tensors[59] == tensors[20]


def test_a_model_without_batch_norm(tmp_path):
    cfg = stack_config(tmp_path)
    cfg.model = dict(type='TinyRegressor', norm_cfg=dict(type='NoNorm'))
    train_stack(cfg)
    assert 'the model has no BatchNorm' in log_of(tmp_path)
    assert not (tmp_path / 'bn_stats.jsonl').exists()


def test_two_monitors_are_refused(tmp_path):
    cfg = stack_config(
        tmp_path, custom_hooks=[dict(type='BNStatsMonitorHook')]
    )
    with pytest.raises(ConfigError, match=r'default_hooks\.bn_stats'):
        train_stack(cfg)


@pytest.mark.parametrize(
    ('option', 'value'),
    [
        ('interval', 0),
        ('interval', 2.5),
        ('on_failure', 'stop'),
        ('max_collective_share', 0),
        ('max_collective_share', 30),
        ('max_running_var', float('nan')),
    ],
)
def test_bad_options_are_refused(option, value):
    with pytest.raises(ConfigError, match=f'{option}={value!r}'):
        BNStatsMonitorHook(**{option: value})


@pytest.fixture(autouse=True, scope='module')
def no_norm():
    from mmengine.registry import MODELS

    @MODELS.register_module(force=True)
    class NoNorm(nn.Identity):
        """Takes what a norm layer takes."""
