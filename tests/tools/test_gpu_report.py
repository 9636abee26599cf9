# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/benchmark/gpu_report.py, as far as CPUs allow."""

import subprocess

import pytest

from tests.tools.command import TOOLS, environment

SCRIPT = TOOLS / 'benchmark' / 'gpu_report.sh'


@pytest.mark.nightly
def test_all_parts_on_a_cpu(tmp_path):
    out = tmp_path / 'report.md'
    done = subprocess.run(
        [
            *(SCRIPT, '--device', 'cpu', '--shapes', '1,8,6,7'),
            *('--repeats', '1', '--steps', '1', '--images', '1'),
            *('--size', '64', '64', '--out', out),
        ],
        env=environment(MEGDET_REPORT_ON_CPU='1'),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    text = out.read_text()
    assert text in done.stdout
    caption, _, heading, _, *rows = text.strip().splitlines()
    assert caption.startswith('CPU, interpreted: its times mean nothing')
    # One shape in three dtypes and two layouts; two small inputs in two
    # dtypes; the detector's step, and that of its backbone and FPN.
    assert len(rows) == 6 + 4 + 2
    assert {row.count('|') for row in (heading, *rows)} == {12}
    for layer in rows[:6]:
        assert layer.startswith('| 1x8x6x7 | ')
    assert "recipe's detector" in rows[-2]
    assert 'backbone and FPN' in rows[-1]


def test_usage():
    done = subprocess.run(
        [SCRIPT, '--help'], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith('usage: tools/benchmark/gpu_report.sh')
