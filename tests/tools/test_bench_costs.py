# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks of the annotation check and of the noise scale."""

import re
import sys

import pytest

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_annotations
import bench_gradient_noise


@pytest.mark.slow
def test_bench_annotations(tmp_path, capsys):
    path = tmp_path / 'annotations.json'
    words = ['--images', '300', '--annotations', '2000', '--points', '3']
    # So small a file is not what the bounds are for.
    assert bench_annotations.main([*words, '--file', str(path)]) in (0, 1)
    assert path.exists()
    said = capsys.readouterr().out
    rows = [line.split(' | ') for line in said.splitlines() if '| ' in line]
    assert [row[0].strip('| ') for row in rows] == [
        'run',
        *bench_annotations.RUNS,
    ]
    seconds = [float(row[1]) for row in rows[1:]]
    shares = [float(row[2]) for row in rows[1:]]
    assert shares[0] == 1
    # Seconds are rounded to hundredths.
    for second, share in zip(seconds, shares, strict=True):
        assert abs(second - share * seconds[0]) <= 0.005 * (1 + share) + 0.001


@pytest.mark.slow
def test_bench_gradient_noise(shared_data, monkeypatch, capsys):
    monkeypatch.setenv('BCCD_ROOT', str(shared_data / 'bccd'))
    monkeypatch.setattr(bench_gradient_noise, 'LEFT_OUT', 0)
    bench_gradient_noise.main(['--updates', '1', '--images', '8'])
    found = re.search(
        r'each: (\S+) s, measured (\S+) s: x (\S+)\. ', capsys.readouterr().out
    )
    plain, measured, ratio = map(float, found.groups())
    assert ratio == pytest.approx(measured / plain, rel=0.01)
