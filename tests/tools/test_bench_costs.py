# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks of the annotation check and of the noise scale."""

import re
import sys

import pytest

from tests.tools.command import TOOLS, run

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_annotations

BENCHMARK = TOOLS / 'benchmark'


@pytest.mark.slow
def test_bench_annotations(tmp_path, capsys):
    path = tmp_path / 'annotations.json'
    words = ['--images', '40', '--annotations', '90', '--file', str(path)]
    # So small a file is not what the bounds are for.
    assert bench_annotations.main(words) in (0, 1)
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
def test_bench_gradient_noise(shared_data):
    done = run(
        BENCHMARK / 'bench_gradient_noise.py',
        *('--updates', '1', '--images', '8'),
        BCCD_ROOT=str(shared_data / 'bccd'),
    )
    assert done.returncode == 0, done.stdout
    text = ' '.join(done.stdout.splitlines()[-1:])
    plain, measured, ratio = map(
        float,
        re.search(
            r'each: (\S+) s, measured (\S+) s: x (\S+)\. ', text
        ).groups(),
    )
    assert ratio == pytest.approx(measured / plain, rel=0.01)
