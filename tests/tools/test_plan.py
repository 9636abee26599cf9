# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest

from tools import plan as tool

TABLE = """\
GPUs            8                            16 (2 nodes x 8)
images per GPU  4                            8
images at once  32                           128
accumulation    8 micro-steps                2 micro-steps
total batch     256 images                   256 images
BN statistics   32 images                    32 images
BN groups       1 x 8 GPUs                   4 x 4 GPUs
epoch           458 updates, 18 images over  458 updates, 18 images over
"""


@pytest.fixture
def plan(capsys):
    """Runs the tool; returns exit status and output."""

    def run(*arguments):
        try:
            status = tool.main([str(word) for word in arguments])
        except SystemExit as end:
            status = end.code
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def test_side_by_side(plan):
    assert plan('8x4', '2x8x8') == (0, TABLE)


def test_what_does_not_run_is_told_beside_what_does(plan):
    status, output = plan('8x4', '6x4', '8x32')
    assert status == 1
    error = [line for line in output.splitlines() if 'error' in line]
    assert len(error) == 1
    assert error[0].startswith('error: 6x4 does not run: 6 GPU(s) x 4')
    assert error[0].endswith(
        'or --bn-size 24 --total-batch 264; or --images-per-gpu 16 '
        '--total-batch 288.'
    )
    assert 'BN groups       1 x 8 GPUs' in output
    assert 'BN is local' in output
    # A suggestion runs as it is printed.
    assert plan('6x4', '--bn-size', 24, '--total-batch', 264)[0] == 0


def test_the_recipe_is_a_matter_of_options(plan):
    status, output = plan(
        '4x4', '--bn-size', 'none', '--total-batch', 64, '--images', 1000
    )
    assert status == 0
    for line in (
        'total batch     64 images',
        'BN statistics   16 images',
        'epoch           15 updates, 40 images over',
    ):
        assert line in output


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['8'], "'8' is neither GPUSxIMAGES, such as 8x4"),
        (['8x0'], "'0' is not a positive whole number"),
        (['8x4', '--bn-size', 'all'], "whole number or 'none'"),
    ],
)
def test_mistakes(plan, arguments, message):
    status, output = plan(*arguments)
    assert status == 2
    assert message in output
