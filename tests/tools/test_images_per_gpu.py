# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The batch from the command line: ``tools/train.py --images-per-gpu N``."""

from __future__ import annotations

import argparse

import pytest
from mmengine.config import Config

from tests.tools.command import TINY_CONFIG, TOOLS, run
from tools import train


def test_it_sets_the_dataloaders_batch_size():
    def applied(**options):
        cfg = Config(dict(train_dataloader=dict(batch_size=4)))
        none = dict(amp=False, auto_scale_lr=False, resume=None)
        train.apply_options(cfg, argparse.Namespace(**none | options))
        return cfg.train_dataloader.batch_size

    assert applied(images_per_gpu=2) == 2
    assert applied() == 4


def train_tiny(work_dir, *options):
    """For one epoch, with 16 images an update; returns status and output."""
    result = run(
        TOOLS / 'train.py',
        TINY_CONFIG,
        '--work-dir',
        work_dir,
        *options,
        '--cfg-options',
        'train_cfg.max_epochs=1',
        'default_hooks.total_batch.type=TotalBatchHook',
        'default_hooks.total_batch.total_batch_size=16',
        'auto_scale_lr.base_batch_size=16',
    )
    return result.returncode, result.stdout


@pytest.mark.slow
def test_the_accumulation_follows(tmp_path):
    """The config says 4 images, and accumulates 2 iterations."""
    status, output = train_tiny(tmp_path, '--images-per-gpu', '8')
    assert status == 0, output
    assert 'images per GPU  8\n' in output
    assert 'accumulation    2 micro-steps\n' in output
    for options, message in (
        (
            ['--images-per-gpu', '3'],
            'error: TotalBatchHook: 1 GPU(s) x 3 image(s) per GPU = 3 at once '
            'do not divide a total batch of 16 (16 = 5 x 3 + 1). Nothing is '
            'rounded. What would run, least changed first: '
            '--images-per-gpu 4; or --cfg-options '
            'default_hooks.total_batch.total_batch_size=15.',
        ),
        (
            [],
            'error: optim_wrapper.accumulative_counts=2 contradicts '
            'TotalBatchHook, which needs 4',
        ),
        (
            ['--images-per-gpu', '8', '--auto-scale-lr'],
            'error: --auto-scale-lr (auto_scale_lr.enable) ignores '
            'accumulative_counts=2',
        ),
    ):
        status, output = train_tiny(tmp_path, *options)
        assert status == 1
        assert message in output
        assert 'Traceback' not in output
