# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The figures and the table show what BNStatsMonitorHook wrote."""

from __future__ import annotations

import sys

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from mmdet_megdet.monitor import read_records
from tests.data.bn_records import NAMES, SLOW, finding, record, write
from tests.tools.command import TINY_CONFIG, TOOLS

sys.path.insert(0, str(TOOLS / 'analysis'))  # as for a script there

import plot_bn_stats as tool

DEAD = finding('dead-channels', 'warning', 'Up to 3 channels.')
RUN = [record(100, findings=[DEAD]), record(200), record(300, findings=[DEAD])]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv('COLUMNS', '160')


def plot(work_dir, *options):
    return tool.main([str(work_dir), *map(str, options)])


def read(work_dir, contents):
    return read_records(write(work_dir, contents))


def test_figures_and_what_stands_out(tmp_path, capsys):
    assert plot(write(tmp_path / 'run', RUN)) == 0
    out = tmp_path / 'run' / 'bn_stats'
    for name in ('between_share', 'drift', 'collectives'):
        assert cv2.imread(str(out / f'{name}.png')).shape[1] == 1500
    rows = [
        [cell.strip() for cell in line.strip('│').split('│')]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith('│')
    ]
    assert rows == [
        ['warning: dead-channels', 'Up to 3 channels.', '2 times'],
        # (place + 0.2) / 10, the median of three.
        *[
            ['variance between ranks', NAMES[place], f'{10 * place + 2}.0%']
            for place in (3, 2, 1, 0)
        ],
        *[
            ['drift of late', NAMES[place], f'{(place + 1) / 200:.3g}']
            for place in (3, 2, 1, 0)
        ],
        ['collectives', f'wait for rank {SLOW}', '10 to 50 ms'],
    ]


@pytest.mark.parametrize(
    'contents',
    [
        [record(100, ranks=1, between_share=None)],
        [record(100, mean_drift=None)],
        # Other hardware after a resume.
        [RUN[0], record(200, ranks=16)],
    ],
)
def test_little_to_show(tmp_path, contents):
    assert plot(write(tmp_path, contents), '--out', tmp_path / 'b/c') == 0
    assert len([*(tmp_path / 'b' / 'c').iterdir()]) == 3


def test_nothing_to_show(tmp_path, capsys):
    assert plot(tmp_path / 'absent') == 1
    assert 'nothing is recorded' in capsys.readouterr().err
    assert not (tmp_path / 'absent').exists()


def test_layers_that_come_and_go_keep_the_forward_order(tmp_path):
    names = [NAMES[:2], NAMES[1:3], [NAMES[0], NAMES[3]]]
    some = [record(100 * i, those) for i, those in enumerate(names, 1)]
    loaded = read(tmp_path, some)
    # A new layer stands behind the one before it.
    assert tool.forward_order(loaded) == [NAMES[0], NAMES[3], *NAMES[1:3]]
    shares = tool.by_layer(loaded, 'between_share')
    assert np.isnan(shares).sum() == 4 * 3 - 6


def test_the_slow_rank_stands_out(tmp_path):
    loaded = read(tmp_path, [RUN[0], record(200, ranks=16)])
    # Rank 15 was not there at first.
    waits = tool.by_rank(loaded, 'collectives')
    assert np.isnan(waits[15]).tolist() == [True, False]
    assert tool.slow_rank(loaded) == SLOW
    even = record(100)
    even['seconds']['collectives'] = [0.05, 0.04, 0.026, 0.06]
    assert tool.slow_rank(read(tmp_path, [even])) is None


def test_hook_writes_what_is_read(tmp_path):
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.work_dir, cfg.experiment_name = str(tmp_path), 'plot_bn_stats'
    cfg.train_dataloader.num_workers = 0
    cfg.train_cfg.max_epochs = 1
    cfg.default_hooks.bn_stats = dict(type='BNStatsMonitorHook', interval=4)
    Runner.from_cfg(cfg).train()
    assert plot(tmp_path) == 0
    loaded = read_records(tmp_path)
    assert [r.iter for r in loaded] == [1, 4, 8]
    assert [(x.name, x.state) for x in loaded[0].layers] == [('norm', 'alone')]
