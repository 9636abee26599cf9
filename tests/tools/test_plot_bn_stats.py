# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The figures and the table show what BNStatsMonitorHook wrote."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from mmdet_megdet.monitor import Seconds
from tests.data.bn_records import NAMES, SLOW, finding, record, write
from tests.data.bn_stack import LAYERS, train_stack
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'analysis'))  # as for a script there

import plot_bn_stats as tool

DEAD = finding('dead-channels', 'Up to 3 channels.')
RUN = [record(100, findings=[DEAD]), record(200), record(300, findings=[DEAD])]


@pytest.fixture
def rows(monkeypatch, capsys):
    """Cells of the table of a work dir."""
    monkeypatch.setenv('COLUMNS', '160')

    def plot(work_dir, *options):
        assert tool.main([str(work_dir), *options]) == 0
        return [
            [cell.strip() for cell in line.strip('│').split('│')]
            for line in capsys.readouterr().out.splitlines()
            if line.startswith('│')
        ]

    return plot


def test_figures_and_what_stands_out(tmp_path, rows):
    assert rows(write(tmp_path, RUN)) == [
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
    for name in ('between_share', 'drift', 'collectives'):
        figure = tmp_path / 'bn_stats' / f'{name}.png'
        assert figure.stat().st_size > 10_000


@pytest.mark.parametrize(
    ('records', 'told'),
    [
        ([record(100, ranks=1, between_share=None)], 5),
        ([record(100, mean_drift=None)], 5),
        # Other hardware after a resume.
        ([record(100), record(200, ranks=16)], 9),
    ],
)
def test_little_to_show(tmp_path, rows, records, told):
    out = tmp_path / 'b' / 'c'
    assert len(rows(write(tmp_path, records), '--out', str(out))) == told
    assert len([*out.iterdir()]) == 3


def test_nothing_to_show(tmp_path, capsys):
    assert tool.main([str(tmp_path / 'absent')]) == 1
    assert 'nothing is recorded' in capsys.readouterr().err
    assert not (tmp_path / 'absent').exists()


def test_layers_that_come_and_go():
    some = [record(100, NAMES[:3]), record(200, NAMES[1:])]
    assert tool.forward_order(some) == NAMES
    assert tool.by_layer(some, 'between_share').count() == 6


def test_the_slow_rank_stands_out():
    some = [record(100), record(200, ranks=16)]
    # Rank 15 was not there at first.
    waits = tool.by_rank(some, 'collectives')
    assert waits.mask[15].tolist() == [True, False]
    assert tool.slow_rank(some) == SLOW
    even = Seconds([0.2] * 4, [0.05, 0.04, 0.026, 0.06])
    assert tool.slow_rank([replace(record(100), seconds=even)]) is None


def test_hook_writes_what_is_read(tmp_path, rows):
    train_stack(tmp_path)
    found = [where for what, where, _ in rows(tmp_path) if 'drift' in what]
    assert sorted(found) == sorted(f'norms.{name}' for name in LAYERS)
