# Copyright (c) mmdet_megdet contributors. All rights reserved.
import random

import noise_scale as tool
import pytest

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.noise import Measurement, open_record
from tests.tools.command import cells


def record(update, g2, s, batch=256, lr=0.04):
    parts = dict(total=dict(g2=g2, s=s), backbone=dict(g2=g2 / 2, s=s))
    return Measurement(update, 1, batch, lr, parts, 1, 8, 32)


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Writes records; returns the text, and cells by what rows begin with."""
    monkeypatch.setenv('COLUMNS', '160')

    def tell(records, *options):
        for one in records:
            open_record(tmp_path).append(one)
        tool.main([str(tmp_path), *options])
        output = capsys.readouterr()
        rows = {row[0]: row[1:] for row in cells(output.out)}
        return output.out + output.err, rows

    return tell


def test_the_advice_is_that_of_the_formulas(tmp_path, told):
    # Without scatter; the warm-up's rate is none that works.
    exact = [
        record(50 * i, 2.0, 1660.0, lr=0.04 if i else 0.001) for i in range(32)
    ]
    output, rows = told(exact, '--lr', '0.02', '--lr-batch', '16')
    epochs, rate, linear, root = rows['256']
    assert epochs.startswith('1.31 ')  # 1 + 256 / 830
    assert rate.startswith('0.249 ')
    assert (linear, root) == ('0.32', '0.08')
    assert rows['512'][1].startswith('0.403 ')
    # Half: (830 + 128) / (830 + 256); twice: (830 + 512) / (830 + 256).
    for text in (
        '256 images an update take 1.31 times the epochs',
        'Half of it would take 0.88 times the epochs',
        'in 1.76 times the updates',
        'Twice of it would take 1.24 times the epochs',
        'upper bound',
    ):
        assert text in output
    assert (tmp_path / 'noise_scale.png').stat().st_size > 10_000


def test_phases_and_parts_are_told_apart(tmp_path, told):
    other_batch = [record(i, 1.0, 9.0, batch=64) for i in range(8)]
    early = [record(i, 1.0, 100.0) for i in range(8, 24)]
    late = [record(i, 1.0, 400.0) for i in range(24, 40)]
    output, rows = told(other_batch + early + late, '--phases', '2')
    assert '8 measurements with another batch' in output
    total, backbone = rows['8 to 23']
    assert total == '100 (100 to 100)'
    assert backbone.startswith('200 ')
    assert rows['24 to 39'][0] == '400 (400 to 400)'
    # The advice is the last phase's, from the run's own rate and batch.
    assert rows['256'][0].startswith('1.64 ')
    assert 'total: from a learning rate of 0.04 at 256 images' in output
    assert '16 measurements of 8 independent parts' in output
    _, rows = told([], '--phases', '2', '--part', 'backbone')
    assert rows['256'][0].startswith('1.32 ')  # 1 + 256 / 800
    with pytest.raises(ConfigError, match='measured were total, backbone'):
        tool.main([str(tmp_path), '--part', 'neck'])


def test_noise_without_a_visible_gradient_is_said(told):
    draw = random.Random(0)
    records = [record(i, draw.gauss(0, 1), 1000.0) for i in range(40)]
    output, _ = told(records, '--phases', '1')
    assert 'its upper end is open' in output
    assert ' to inf)' in output


def test_a_model_without_gradients(tmp_path):
    open_record(tmp_path).append(record(1, 0.0, 0.0))
    with pytest.raises(ConfigError, match=r'is the model frozen\?'):
        tool.main([str(tmp_path)])
