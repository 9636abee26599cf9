# Copyright (c) mmdet_megdet contributors. All rights reserved.
import random
import sys

import pytest

from mmdet_megdet.noise import Measurement, open_record
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'analysis'))  # as for a script there

import noise_scale as tool


def record(update, g2, s, batch=256, lr=0.04):
    parts = dict(backbone=dict(g2=g2 / 2, s=s), total=dict(g2=g2, s=s))
    return Measurement(update, 1, batch, lr, parts, 1, 8, 32)


def write(folder, records):
    for one in records:
        open_record(folder).append(one)


def exact(scale, measurements=32):
    """Measurements without scatter, of this noise scale."""
    return [
        record(50 * i, 2.0, 2.0 * scale, lr=0.04 if i else 0.001)
        for i in range(measurements)
    ]


def rows(output, first):
    """Cells of the row that begins so."""
    line = next(
        line
        for line in output.splitlines()
        if line.strip('│ ').split(' ')[0] == first
    )
    return [cell.strip() for cell in line.strip('│').split('│')]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv('COLUMNS', '160')


def test_the_advice_is_that_of_the_formulas(tmp_path, capsys):
    write(tmp_path, exact(830))
    args = [str(tmp_path), '--lr', '0.02', '--lr-batch', '16']
    assert tool.main(args) == 0
    output = capsys.readouterr().out
    _, epochs, rate, linear, root = rows(output, '256')
    assert epochs.startswith('1.31 ')  # 1 + 256 / 830
    assert rate.startswith('0.249 ')
    assert (linear, root) == ('0.32', '0.08')
    assert rows(output, '512')[2].startswith('0.403 ')
    # Half: (830 + 128) / (830 + 256); twice: (830 + 512) / (830 + 256).
    assert '256 images an update take 1.31 times the epochs' in output
    assert 'Half of it would take 0.88 times the epochs' in output
    assert 'in 1.76 times the updates' in output
    assert 'Twice of it would take 1.24 times the epochs' in output
    assert 'upper bound' in output
    assert (tmp_path / 'noise_scale.png').stat().st_size > 10_000


def test_phases_and_parts_are_told_apart(tmp_path, capsys):
    other_batch = [record(i, 1.0, 9.0, batch=64) for i in range(8)]
    early = [record(i, 1.0, 100.0) for i in range(8, 24)]
    late = [record(i, 1.0, 400.0) for i in range(24, 40)]
    write(tmp_path, other_batch + early + late)
    args = [str(tmp_path), '--phases', '2']
    assert tool.main(args) == 0
    output, said = capsys.readouterr()
    assert '8 measurements with another batch' in said
    early, late = rows(output, '8'), rows(output, '24')
    assert early[:2] == ['8 to 23', '100 (100 to 100)']
    assert late[1] == '400 (400 to 400)'
    assert early[2].startswith('200 ')  # the backbone's
    # The advice is the last phase's, from the run's own rate and batch.
    assert rows(output, '256')[1].startswith('1.64 ')
    assert 'total: from a learning rate of 0.04 at 256 images' in output
    assert '16 measurements of 8 independent parts' in output
    assert tool.main([*args, '--part', 'neck']) == 1
    assert 'measured were total, backbone' in capsys.readouterr().err
    assert tool.main([*args, '--part', 'backbone']) == 0
    # 1 + 256 / 800
    assert rows(capsys.readouterr().out, '256')[1].startswith('1.32 ')


def test_noise_without_a_visible_gradient_is_said(tmp_path, capsys):
    draw = random.Random(0)
    write(tmp_path, [record(i, draw.gauss(0, 1), 1000.0) for i in range(40)])
    assert tool.main([str(tmp_path), '--phases', '1']) == 0
    output = capsys.readouterr().out
    assert 'its upper end is open' in output
    assert ' to inf)' in output


def test_what_is_not_there_is_an_error(tmp_path, capsys):
    assert tool.main([str(tmp_path)]) == 1
    assert 'nothing is recorded' in capsys.readouterr().err
    write(tmp_path, [record(1, 0.0, 0.0)])
    assert tool.main([str(tmp_path)]) == 1
    assert 'is the model frozen?' in capsys.readouterr().err
