# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The monitor in the stock Runner, on one process."""

from __future__ import annotations

import json

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import BNStatsMonitorHook
from tests.data.bn_stack import lines, stack_config, train_stack
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


def test_where_the_numbers_go(tmp_path, meddle):
    kept = []

    def note(runner):
        kept.append(dict(runner.message_hub._resumed_keys))

    train_stack(stack_config(tmp_path, custom_hooks=meddle(note)))
    records = lines(tmp_path)
    # The first of the run, then every second.
    assert [line['iter'] for line in records] == [1, 2, 4, 6]
    assert [line['epoch'] for line in records] == [1, 1, 2, 2]
    (path,) = tmp_path.glob('*/vis_data/scalars.json')
    drawn = [json.loads(line) for line in path.read_text().splitlines()]
    curves = {c['step']: c for c in drawn if 'bn/norms.stem/mean_drift' in c}
    # Aggregates come with the log line, which repeats the latest.
    logged = [c for c in drawn if 'bn_mean_drift' in c]
    assert len(logged) == 6
    for line in records:
        assert (line['world_size'], line['images_per_gpu']) == (1, 2)
        assert line['seconds']['iteration'][0] > 0
        assert line['seconds']['collectives'] == [0]
        for row in line['layers']:
            assert (row['state'], row['count']) == ('alone', 128)
            assert row['between_share'] is None
            for what in ('mean_drift', 'running_var_max', 'dead_channels'):
                tag = f'bn/{row["name"]}/{what}'
                assert curves[line['iter']][tag] == row[what]
        drifts = [row['mean_drift'] for row in line['layers']]
        found = logged[line['iter'] - 1]
        assert found['bn_mean_drift'] == pytest.approx(sum(drifts) / 4)
        assert found['bn_findings'] == 0
    # Not saved in checkpoints.
    assert {k: v for k, v in kept[-1].items() if '/bn_' in k} == {
        'train/bn_mean_drift': False,
        'train/bn_findings': False,
    }


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
    assert log.count('eval-mode: norms.stem: eval mode') == 1
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
        'iteration 1: 4 BatchNorm layers, 1 eval, 3 alone; verdict: 1 warning.'
        in log
    )


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
        ('on_failure', 'stop'),
        ('max_collective_share', 0),
        ('max_running_var', float('nan')),
    ],
)
def test_bad_options_are_refused(option, value):
    with pytest.raises(ConfigError, match=f'{option}={value!r}'):
        BNStatsMonitorHook(**{option: value})
