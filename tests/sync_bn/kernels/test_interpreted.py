# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layer's tests once more, with Triton's kernels in its interpreter.

In a pytest of their own, since Triton decides as it is imported whether it
interprets.
"""

import subprocess
import sys

import pytest

from tests.tools.command import ROOT, environment

KERNELS = 'tests/sync_bn/kernels/interpreted_cases.py'
LAYER = 'tests/distributed/test_sync_bn.py'
# Not in the interpreter: many ranks and long rows, which are slow; fake
# tensors, which have no memory; and what plain operations do while sums
# travel.
LEFT_OUT = (
    *('parity[4]', 'parity[8]', 'many', '[16]'),
    *('long_rows', 'host', 'on_their_way'),
)


@pytest.mark.parametrize(
    'arguments',
    [
        (KERNELS, '-m', 'not slow'),
        pytest.param((KERNELS, '-m', 'slow'), marks=pytest.mark.nightly),
        pytest.param(
            (LAYER, '-k', f'not ({" or ".join(LEFT_OUT)})'),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=['a_few_cases', 'wrong_formulas', 'layer'],
)
def test_interpreted(arguments):
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'pytest', '-q', '-x', '--no-header'),
            *('-p', 'tests.sync_bn.kernels.small_tiles', *arguments),
        ],
        cwd=ROOT,
        env=environment(
            TRITON_INTERPRET='1',
            MEGDET_BN_KERNELS='triton',
            PYTHONPATH=str(ROOT),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert ' passed' in done.stdout
