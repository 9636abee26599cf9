# Copyright (c) mmdet_megdet contributors. All rights reserved.
import importlib.util
import json
import random
from math import inf
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / 'tools' / 'analysis' / 'noise_scale.py'


def load_tool():
    spec = importlib.util.spec_from_file_location('noise_scale', TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def record(update, g2, s, batch=256, lr=0.04):
    return dict(
        update=update,
        epoch=1,
        total_batch_size=batch,
        lr=lr,
        parts=dict(backbone=dict(g2=g2 / 2, s=s), total=dict(g2=g2, s=s)),
        groups=1,
        micro_steps=8,
        part_images=32,
    )


def write(folder, records):
    lines = [json.dumps(one) + '\n' for one in records]
    (folder / 'grad_noise.jsonl').write_text(''.join(lines))


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
    write(
        tmp_path,
        [record(i, 1.0, 100.0) for i in range(16)]
        + [record(i, 1.0, 400.0) for i in range(16, 32)],
    )
    assert tool.main([str(tmp_path), '--phases', '2']) == 0
    output = capsys.readouterr().out
    early, late = rows(output, '0'), rows(output, '16')
    assert early[:2] == ['0 to 15', '100 (100 to 100)']
    assert late[1] == '400 (400 to 400)'
    assert early[2].startswith('200 ')  # the backbone's
    # The advice is the last phase's, from the run's own rate and batch.
    assert rows(output, '256')[1].startswith('1.64 ')
    assert 'total: from a learning rate of 0.04 at 256 images' in output
    assert tool.main([str(tmp_path), '--phases', '2', '--part', 'neck']) == 1
    assert 'measured were total, backbone' in capsys.readouterr().err
    args = [str(tmp_path), '--phases', '2', '--part', 'backbone']
    assert tool.main(args) == 0
    # 1 + 256 / 800
    assert rows(capsys.readouterr().out, '256')[1].startswith('1.32 ')


def test_noise_without_a_visible_gradient_is_said(tmp_path, capsys):
    draw = random.Random(0)
    write(
        tmp_path,
        [record(i, draw.gauss(0, 1), 1000.0) for i in range(40)],
    )
    assert tool.main([str(tmp_path), '--phases', '1']) == 0
    output = capsys.readouterr().out
    assert 'its upper end is open' in output
    assert ' to inf)' in output


def test_updates_of_another_batch_are_left_out(tmp_path, capsys):
    write(
        tmp_path,
        [record(i, 1.0, 50.0, batch=64) for i in range(8)] + exact(830)[8:],
    )
    assert tool.main([str(tmp_path), '--phases', '1']) == 0
    captured = capsys.readouterr()
    assert '8 measurements with another batch' in captured.err
    assert '24 measurements of 8 independent parts' in captured.out


def test_half_and_twice_when_nothing_shows():
    scale = tool.NoiseScale(inf, 90.0, inf, 5)
    assert 'above 90 images' in tool.in_words(scale, 256)


def test_what_is_not_there_is_an_error(tmp_path, capsys):
    assert tool.main([str(tmp_path)]) == 1
    assert 'grad_noise.jsonl' in capsys.readouterr().err
    write(tmp_path, [])
    assert tool.main([str(tmp_path)]) == 1
    assert 'measured nothing' in capsys.readouterr().err
    write(tmp_path, [record(1, 0.0, 0.0)])
    assert tool.main([str(tmp_path)]) == 1
    assert 'is the model frozen?' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path), '--lr', '0'])
    assert 'not a positive number' in capsys.readouterr().err
