# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The monitor in the stock Runner, on one process."""

import json

import msgspec
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import BNStatsMonitorHook
from mmdet_megdet.monitor import read_records
from tests.data.bn_stack import lines, train_stack
from tests.data.tiny_run import curves_of, log_of


def listened_to(model):
    return [
        bool(layer._forward_pre_hooks or vars(layer).get('observer'))
        for layer in model.norms.values()
    ]


@HOOKS.register_module(force=True)
class Meddle(Hook):
    """Kills a channel after the first iteration, and one after the fourth.

    Notes which layers are listened to, before and after iterations.
    """

    priority = 'VERY_LOW'

    def before_train(self, runner):
        runner.noted = []

    def before_train_iter(self, runner, *args, **kwargs):
        runner.noted.append(listened_to(runner.model))

    def after_train_iter(self, runner, *args, **kwargs):
        self.before_train_iter(runner)
        killed = 2 if runner.iter >= 3 else 1
        runner.model.convs['second'].weight.data[:killed] = 0


def train(folder, **settings):
    own = dict(
        model__norm_eval=['stem'],
        model__plain=['fourth'],
        custom_hooks=[dict(type='Meddle')],
    )
    return train_stack(folder, **own | settings)


@pytest.fixture(scope='module')
def watched(tmp_path_factory):
    """A runner, and the folder of its run."""
    folder = tmp_path_factory.mktemp('watched')
    return train(folder), folder


def test_between_looks_the_model_is_left_alone(watched, tmp_path):
    """And what it learns is the same as without the hook, bit for bit."""
    runner, folder = watched
    # The first of the run, then every second.
    looks = [line['iter'] for line in lines(folder)]
    assert looks == [1, 2, 4, 6]
    for iteration in range(1, 7):
        before, after = runner.noted[2 * iteration - 2 : 2 * iteration]
        assert before == [iteration in looks] * 4
        assert after == [False] * 4
    alone = train(tmp_path, default_hooks__bn_stats=None)
    states = (each.model.state_dict() for each in (runner, alone))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_an_error_during_a_look_ends_it(watched):
    runner, _ = watched
    hook = BNStatsMonitorHook()
    hook.before_train(runner)
    hook.before_train_iter(runner)
    assert listened_to(runner.model) == [True] * 4
    # As UpdateTrainLoop does.
    hook.on_error(runner, ArithmeticError())
    assert listened_to(runner.model) == [False] * 4


def test_where_the_numbers_go(watched):
    """Aggregates over ranks: tests/distributed/test_bn_stats_monitor.py."""
    runner, folder = watched
    (path,) = folder.glob('*/vis_data/scalars.json')
    drawn = [json.loads(line) for line in path.read_text().splitlines()]
    curves = {c['step']: c for c in drawn if 'bn/norms.stem/mean_drift' in c}
    # Aggregates come with the log line, which repeats the latest.
    logged = [c['bn_findings'] for c in drawn if 'bn_findings' in c]
    assert logged == [1, 2, 2, 2, 2, 2]
    drifts = dict(curves_of(folder, 'bn_mean_drift'))
    # What the tool that plots reads.
    assert msgspec.to_builtins(read_records(folder)) == lines(folder)
    for line in lines(folder):
        assert line['epoch'] == (line['iter'] + 2) // 3
        assert (line['world_size'], line['images_per_gpu']) == (1, 2)
        assert line['seconds']['collectives'] == [0]
        drift = sum(row['mean_drift'] for row in line['layers']) / 4
        assert drifts[line['iter']] == pytest.approx(drift)
        for row in line['layers']:
            state = 'eval' if row['name'] == 'norms.stem' else 'alone'
            assert (row['state'], row['count']) == (state, 128)
            for what in ('mean_drift', 'running_var_max', 'dead_channels'):
                tag = f'bn/{row["name"]}/{what}'
                assert curves[line['iter']][tag] == row[what]
    # Not saved in checkpoints.
    kept = runner.message_hub._resumed_keys
    assert not any(kept[key] for key in kept if '/bn_' in key)


def test_a_run_that_resumes_continues_the_record(tmp_path):
    def looks(epochs, **settings):
        settings['default_hooks__checkpoint__interval'] = 1
        train(tmp_path, train_cfg__max_epochs=epochs, **settings)
        return [line['iter'] for line in lines(tmp_path)]

    assert looks(2) == [1, 2, 4, 6]
    path = tmp_path / 'bn_stats.jsonl'
    first = path.read_text().splitlines()[:2]
    # Killed after the checkpoint of iteration 3.
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_1.pth'))
    # 4 is the first of the resumed run, and due besides.
    assert looks(3, resume=True) == [1, 2, 4, 6, 8]
    assert path.read_text().splitlines()[:2] == first
    # One that starts anew begins anew.
    assert looks(1) == [1, 2]


def test_a_finding_that_stays_is_logged_once(watched):
    _, folder = watched
    log, records = log_of(folder), lines(folder)
    assert log.count('eval-mode: norms.stem: eval mode') == 1
    # Another channel is no other finding.
    assert log.count('- WARNING - BNStatsMonitorHook: dead-channels: ') == 1
    found = [[f['check'] for f in line['findings']] for line in records]
    assert found == [['eval-mode']] + [['eval-mode', 'dead-channels']] * 3
    dead = [line['layers'][1]['dead_channels'] for line in records]
    assert dead == [0, 1, 1, 2]
    said = '4 BatchNorm layers, 1 eval, 3 alone; verdict: 1 warning.'
    assert f'iteration 1: {said}' in log


def test_refusals(tmp_path):
    second = [dict(type='BNStatsMonitorHook')]
    with pytest.raises(ConfigError, match=r'default_hooks\.bn_stats'):
        train_stack(tmp_path, custom_hooks=second)
    for option, value in dict(
        interval=0,
        on_failure='stop',
        max_collective_share=0,
        max_running_var=float('nan'),
    ).items():
        with pytest.raises(ConfigError, match=f'{option}={value!r}'):
            BNStatsMonitorHook(**{option: value})
