# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The recipe itself on eight ranks: train, test, resume."""

import re

import pytest
import torch
from mmengine.config import Config

import mmdet_megdet  # noqa: F401  lets torch load MMEngine's checkpoints
from tests.data.small_coco import coco_like, shrink
from tests.data.tiny_run import curves_of
from tests.tools import command
from tests.tools.command import ROOT, TOOLS

SIDE = 96


def test_recipe_on_eight_ranks(tmp_path):
    """On small images, one on each rank: an update of eight."""
    config, work_dir = tmp_path / 'recipe.py', tmp_path / 'work_dir'
    coco_like(tmp_path / 'coco', SIDE)
    cfg = Config.fromfile(ROOT / 'configs/megdet/r50_fpn_256bs.py')
    shrink(cfg, tmp_path / 'coco', work_dir, SIDE, images=1)
    # 24 images: three updates an epoch. The one that shows no object is a
    # rank's whole batch.
    cfg.train_dataloader.dataset.filter_cfg.filter_empty_gt = False
    cfg.default_hooks.total_batch.total_batch_size = 8
    cfg.default_hooks.checkpoint.interval = 1
    cfg.default_hooks.logger.interval = 1
    cfg.env_cfg.dist_cfg.timeout = 300
    cfg.log_level = 'INFO'
    cfg.dump(config)

    def run(script, *words):
        done = command.run(TOOLS / script, config, *words, cold=True)
        assert done.returncode == 0, done.stdout[-5000:]
        return done.stdout

    train = ('dist_train.sh', '8', '--work-dir', work_dir, '--bn-size', '4')
    output = run(*train)
    names = 'GPUs|accumulation|total batch|BN groups|warm-up'
    assert dict(re.findall(f'^ *({names})  +(.*)$', output, re.M)) == {
        'GPUs': '8',
        'accumulation': '1 micro-step',
        'total batch': '8 images',
        'BN groups': '2 x 4 GPUs',
        'warm-up': '1000 updates',
    }
    first = work_dir / 'epoch_1.pth'
    checkpoint = torch.load(first)
    assert checkpoint['meta']['iter'] == 3
    tracked = [
        value.item()
        for key, value in checkpoint['state_dict'].items()
        if key.endswith('num_batches_tracked')
    ]
    # All of ResNet-50's 53 norm layers and the FPN's 4 + 4 have been in
    # training mode, each once an iteration.
    assert tracked == [3] * 61
    rates = curves_of(work_dir, 'lr')

    output = run('dist_test.sh', first, '2', '--work-dir', tmp_path / 'test')
    for kind in ('bbox', 'segm'):
        assert re.search(rf'coco/{kind}_mAP: \d\.\d{{4}}', output)

    more = ('--resume', '--cfg-options', 'train_cfg.max_epochs=2')
    run(*train, *more)
    assert torch.load(work_dir / 'epoch_2.pth')['meta']['iter'] == 6
    rates += curves_of(work_dir, 'lr')
    # The logger rounds to 5 digits.
    expected = [0.04 * (0.001 + 0.999 * done / 1000) for done in range(6)]
    assert [step for step, _ in rates] == [1, 2, 3, 4, 5, 6]
    assert [rate for _, rate in rates] == pytest.approx(expected, rel=1e-4)
    losses = [loss for _, loss in curves_of(work_dir, 'loss')]
    assert all(0 < loss < 100 for loss in losses)
