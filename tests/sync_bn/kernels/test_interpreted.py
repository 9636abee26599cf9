# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layer's tests once more, with Triton's kernels in its interpreter.

In a pytest of their own, since Triton decides as it is imported whether it
interprets.
"""

import subprocess
import sys

import pytest

from tests.tools.command import ROOT, environment

KERNELS = 'tests/sync_bn/kernels'
LAYER = 'tests/distributed/test_sync_bn.py'
OTHERS = (
    'tests/distributed/test_sync_bn_properties.py::test_parity',
    'tests/distributed/test_sync_bn_properties.py'
    '::test_gradients_across_ranks_by_central_differences',
    'tests/distributed/test_observation.py',
    'tests/distributed/test_bn_groups.py'
    '::test_statistics_are_those_of_the_group',
)
pytestmark = pytest.mark.skipif(
    sys.platform != 'linux', reason='triton is for Linux'
)


def interpreted(*arguments):
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


def test_a_few_cases():
    interpreted(f'{KERNELS}/interpreted_cases.py', '-m', 'not slow')


@pytest.mark.nightly
def test_all_cases_of_the_layer():
    # Not in the interpreter: many ranks, which are slow; fake tensors, which
    # have no memory; and what plain operations do while sums travel.
    left_out = 'parity[4]', 'parity[8]', 'ddp', 'host', 'on_their_way'
    interpreted(LAYER, '-k', ' and '.join(f'not {n}' for n in left_out))


@pytest.mark.nightly
def test_properties():
    interpreted(*OTHERS)


@pytest.mark.nightly
def test_wrong_formulas_are_noticed():
    interpreted(f'{KERNELS}/interpreted_cases.py', '-m', 'slow')
