# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import subprocess
import sys

import pytest

from tests.annotations.configs import config_of, content_of, write
from tests.tools.command import TOOLS
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
warm-up         1000 updates                 1000 updates
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


def test_in_words(plan):
    words = ['--gpus', 8, '--nodes', 2, '--images-per-gpu', 8]
    assert plan(*words) == plan('2x8x8')
    assert plan('--gpus', 8, '--images-per-gpu', 4) == plan('8x4')


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


def test_a_suggestion_runs_as_it_is_printed(plan):
    assert plan('6x4')[0] == 1
    assert plan('6x4', '--bn-size', 24, '--total-batch', 264)[0] == 0


def test_the_recipe_is_a_matter_of_options(plan):
    status, output = plan(
        '4x4', '--bn-size', 'none', '--total-batch', 64, '--images', 1000,
        '--warmup-updates', 500, '--lr', 0.02, '--lr-batch', 16,
    )  # fmt: skip
    assert status == 0
    for line in (
        'total batch     64 images',
        'BN statistics   16 images',
        'epoch           15 updates, 40 images over',
        'warm-up         500 updates',
        'learning rate   0.08',
        'assumption weaker than the usual one: not that the gradients',
    ):
        assert line in output


def test_images_by_memory(plan):
    memory = ['--gpus', 8, '--gb-per-image', 3, '--gb-fixed', 5]
    status, output = plan(*memory, '--memory', 24)
    assert status == 0
    first, table = output.split('\n', 1)
    assert first == (
        '6 image(s) fit a GPU: (24 GB - 5 GB) / 3 GB. The plan is for 4.'
    )
    assert table == plan('8x4')[1]
    # 2 fit, and 8 x 2 are too few for a BN size of 32.
    status, output = plan(*memory, '--memory', 12)
    assert status == 1
    assert 'The plan is for 2.' in output
    assert 'error: 8x2 does not run' in output
    status, _ = plan(*memory, '--memory', 7)
    assert status.startswith('error: not one image fits')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'give set-ups as 8x4, or one by --gpus and either'),
        (['--gpus', '8'], 'either --images-per-gpu or --memory'),
        (['8'], "'8' is neither GPUSxIMAGES, such as 8x4"),
        (['8x0'], "'0' is not a positive whole number"),
        (['8x4', '--gpus', '8'], 'give set-ups as 8x4, or one by'),
        (['8x4', '--images-per-gpu', '8'], 'give set-ups as 8x4, or one by'),
        (['--gpus', '8', '--memory', '24'], '--memory needs --gb-per-image'),
        (['8x4', '--lr', '0.02'], '--lr and --lr-batch belong together'),
        (['8x4', '--lr', '-1'], "'-1' is not a positive number"),
        (['8x4', '--lr', 'nan'], "'nan' is not a positive number"),
        (
            ['8x4', '--bn-size', 'all'],
            "whole number or 'none'",
        ),
    ],
)
def test_mistakes(plan, arguments, message):
    status, output = plan(*arguments)
    assert status == 2
    assert message in output


def test_torch_is_not_imported():
    script = (
        'import runpy, sys\n'
        'tool = sys.argv.pop(1)\n'
        'try:\n'
        '    runpy.run_path(tool, run_name="__main__")\n'
        'except SystemExit as end:\n'
        '    assert end.code == 0\n'
        'heavy = {"torch", "numpy", "mmengine", "mmdet", "mmdet_megdet"}\n'
        'assert not heavy & set(sys.modules)\n'
    )
    command = [sys.executable, '-c', script, TOOLS / 'plan.py', '8x4']
    subprocess.run(command, check=True)


def test_images_of_a_config(plan, tmp_path):
    """As the training data set filters and repeats them."""
    write(tmp_path, content_of(300), content_of())
    cfg = config_of(tmp_path, train_dataloader__dataset__indices=260)
    cfg.dump(tmp_path / 'config.py')
    assert plan('8x4', '--images', tmp_path / 'config.py') == plan(
        '8x4', '--images', 260
    )
    (tmp_path / 'train.json').unlink()
    status, output = plan('8x4', '--images', tmp_path / 'config.py')
    assert status == 2
    assert f'there is no annotation file {tmp_path}/train.json' in output
    assert plan('8x4', '--images', 'no.py')[0] == 2
