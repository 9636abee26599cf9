# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ``NNODES=MIN:MAX`` refuses before any machine meets another."""

import elastic
import pytest
import torch
from torch.distributed import run as torchrun

from mmdet_megdet.errors import MegDetError
from tests.tools.command import ROOT, TOOLS, run

CONFIG = str(ROOT / 'tests' / 'data' / 'elastic_config.py')


@pytest.fixture
def check(tmp_path):
    def check_options(options, nodes='1:2', script='train.py'):
        given = [f'--nnodes={nodes}', '--nproc-per-node=1']
        given += [str(TOOLS / script), '--launcher', 'pytorch', CONFIG]
        given += ['--work-dir', str(tmp_path), '--resume', *options.split()]
        return elastic.check_training(torchrun.parse_args(given))

    yield check_options
    torch.set_default_dtype(torch.float32)  # which the config changes


def test_images_for_each_number_of_machines(check):
    assert check('--max-images-per-gpu 8') == {1: 8, 2: 4}


STOCK = '--cfg-options train_cfg.type=EpochBasedTrainLoop'
WOULD_RUN = r'machine\(s\): .* What would run: '


@pytest.mark.parametrize(
    ('options', 'settings', 'message'),
    [
        ('a.pth', {}, 'with --resume a.pth it'),
        ('', dict(nodes='2:1'), '2:1 is not MIN:MAX'),
        ('', dict(nodes='0:2'), '0:2 is not MIN:MAX'),
        ('', dict(script='test.py'), 'NNODES=1:2 is for training'),
        (STOCK, {}, "train_cfg.type is 'EpochBasedTrainLoop'"),
        ('--images-per-gpu 8', {}, f'2 {WOULD_RUN}--max-images-per-gpu 8'),
        ('--max-images-per-gpu 8', dict(nodes='1:3'),
         f'3 {WOULD_RUN}NNODES=1:2'),
    ],
)  # fmt: skip
def test_refused(check, options, settings, message):
    with pytest.raises(MegDetError, match=message):
        check(options, **settings)


def test_the_launcher_says_so(tmp_path):
    """By status 2 and one message, started as a user starts it."""
    result = run(
        *(TOOLS / 'dist_train.sh', CONFIG, '1', '--work-dir', tmp_path),
        NNODES='1:2',
        MASTER_ADDR='127.0.0.1',
        cold=True,
    )
    assert result.returncode == 2
    assert 'error: NNODES=1:2 restarts training whenever' in result.stdout
    assert 'Traceback' not in result.stdout
