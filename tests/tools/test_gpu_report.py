# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/benchmark/gpu_report.py, as far as CPUs allow."""

import subprocess

import pytest

from tests.tools.command import ROOT, TOOLS, environment

SCRIPT = TOOLS / 'benchmark' / 'gpu_report.sh'


@pytest.mark.nightly
def test_all_parts_on_a_cpu(tmp_path):
    out = tmp_path / 'report.md'
    done = subprocess.run(
        [
            *(SCRIPT, '--device', 'cpu', '--shapes', '1,8,6,7'),
            *('--repeats', '1', '--steps', '1', '--images', '1'),
            *('--size', '64', '64', '--out', out),
            *('--config', ROOT / 'configs' / 'megdet' / 'bccd_r18_fpn.py'),
        ],
        env=environment(MEGDET_REPORT_ON_CPU='1'),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    text = out.read_text()
    assert text in done.stdout
    rows = [line.split(' | ') for line in text.splitlines() if '| ' in line]
    heading, *layers = [row for row in rows if len(row) > 5]
    error = heading.index('largest error |')
    # In three dtypes and two layouts: plain, ours and textbook.
    assert len(layers) == 3 * 2 * 3
    ours = [row for row in layers if row[4] == 'ours']
    assert len(ours) == 6
    for row in ours:
        # A share of the bound, and what it is the error of.
        assert 0 <= float(row[error].split()[0]) <= 1
    steps = [row for row in rows if len(row) <= 5]
    assert [row[0].strip('| ') for row in steps] == [
        'step',
        'plain',
        'meeting',
        'synchronised',
    ]


def test_usage():
    done = subprocess.run(
        [SCRIPT, '--help'], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith('usage: tools/benchmark/gpu_report.sh')
