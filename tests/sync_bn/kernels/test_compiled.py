# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The kernels compile for GPUs that are not here, and for what they are."""

import json
import sys

import pytest

from tests.tools.command import ROOT, run

PROGRAM = ROOT / 'tests' / 'sync_bn' / 'kernels' / 'compiled.py'
pytestmark = pytest.mark.skipif(
    sys.platform != 'linux', reason='triton is for Linux'
)

WRITE = ('normalise', 'input_gradient')


def compiled(tmp_path, *arguments):
    done = run(
        PROGRAM,
        *arguments,
        TRITON_CACHE_DIR=str(tmp_path),
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ('target', 'dtypes'),
    [
        ('sm_90', ['float16']),
        pytest.param('sm_90', ['float32'], marks=pytest.mark.nightly),
        pytest.param(
            'sm_80', ['bfloat16', 'float32'], marks=pytest.mark.nightly
        ),
        pytest.param(
            'gfx942', ['float32', 'float16'], marks=pytest.mark.nightly
        ),
    ],
)
def test_no_spills_no_stack_and_wide_accesses(tmp_path, target, dtypes):
    rows = compiled(tmp_path, target, *dtypes)
    # Four kernels over the data, in both layouts, with and without vectors.
    assert len([r for r in rows if r['axis'] is not None]) == 16 * len(dtypes)
    for row in rows:
        assert row['spills'] == row['stack'] == 0, row
        if row['unit'] == 16:
            assert row['load'] == 16, row
            assert row['store'] == 16 or row['kernel'] not in WRITE, row


def test_no_size_of_input_needs_another_kernel(tmp_path):
    """Those of the self-check serve them all."""
    assert compiled(tmp_path, 'many-shapes') == 0
