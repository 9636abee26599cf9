# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The recipe itself on eight ranks: train, test, resume."""

import json
import re

import pytest
import torch

import mmdet_megdet  # noqa: F401  lets torch load MMEngine's checkpoints
from tests.data.small_coco import coco_like
from tests.tools import command
from tests.tools.command import ROOT, TOOLS

CONFIG = 'configs/megdet/r50_fpn_256bs.py'
SIDE = 96

# What makes 256 large images fit two cores: one small image per rank, an
# update every iteration, fewer proposals. The model is the recipe's.
SMALL = [
    'model.backbone.init_cfg=None',
    'train_dataloader.batch_size=1',
    'default_hooks.total_batch.total_batch_size=8',
    *(
        f'{loader}_dataloader.{option}'
        for loader in ('train', 'val', 'test')
        for option in ('num_workers=0', 'persistent_workers=False')
    ),
    # Images without objects take part.
    'train_dataloader.dataset.filter_cfg.filter_empty_gt=False',
    f'train_dataloader.dataset.pipeline.2.scale=({SIDE},{SIDE})',
    f'val_dataloader.dataset.pipeline.1.scale=({SIDE},{SIDE})',
    f'test_dataloader.dataset.pipeline.1.scale=({SIDE},{SIDE})',
    'model.train_cfg.rpn_proposal.nms_pre=100',
    'model.train_cfg.rpn_proposal.max_per_img=50',
    *(f'model.train_cfg.rcnn.{i}.sampler.num=16' for i in range(3)),
    'model.test_cfg.rpn.nms_pre=100',
    'model.test_cfg.rpn.max_per_img=50',
    # So that a model that has learned nothing yet has detections.
    'model.test_cfg.rcnn.score_thr=0.005',
    'model.test_cfg.rcnn.max_per_img=10',
    'default_hooks.logger.interval=1',
    'env_cfg.dist_cfg.timeout=300',
    'randomness.seed=0',
]


def test_recipe_on_eight_ranks(tmp_path):
    data, work_dir = tmp_path / 'coco', tmp_path / 'work_dir'
    coco_like(data, SIDE)

    def run(script, *arguments):
        words = (TOOLS / script, CONFIG, *arguments, *SMALL)
        variables = dict(COCO_ROOT=str(data))
        done = command.run(*words, cwd=ROOT, cold=True, **variables)
        assert done.returncode == 0, done.stdout[-5000:]
        return done.stdout

    # 24 images on 8 ranks: three iterations an epoch, and as many updates.
    # One of the images shows no object, and is a rank's whole batch.
    train = ('dist_train.sh', '8', '--work-dir', work_dir, '--bn-size', '4')
    output = run(*train, '--cfg-options', 'train_cfg.max_epochs=1')
    names = 'GPUs|accumulation|total batch|BN groups|warm-up'
    assert dict(re.findall(f'^ *({names})  +(.*)$', output, re.M)) == {
        'GPUs': '8',
        'accumulation': '1 micro-step',
        'total batch': '8 images',
        'BN groups': '2 x 4 GPUs',
        'warm-up': '1000 updates',
    }

    first = work_dir / 'epoch_1.pth'
    checkpoint = torch.load(first, map_location='cpu')
    assert checkpoint['meta']['iter'] == 3
    tracked = [
        value.item()
        for key, value in checkpoint['state_dict'].items()
        if key.endswith('num_batches_tracked')
    ]
    # All of ResNet-50's 53 norm layers and the FPN's 4 + 4 have been in
    # training mode, each once an iteration.
    assert tracked == [3] * 61

    test = (first, '2', '--work-dir', work_dir / 'test')
    output = run('dist_test.sh', *test, '--cfg-options')
    assert re.search(r'coco/bbox_mAP: \d\.\d{4}', output)
    assert re.search(r'coco/segm_mAP: \d\.\d{4}', output)

    run(*train, '--resume', '--cfg-options', 'train_cfg.max_epochs=2')
    checkpoint = torch.load(work_dir / 'epoch_2.pth', map_location='cpu')
    assert checkpoint['meta']['iter'] == 6
    files = sorted(work_dir.glob('*/vis_data/scalars.json'))
    lines = [json.loads(line) for file in files for line in file.open()]
    lines = [line for line in lines if 'loss' in line]
    assert [line['step'] for line in lines] == [1, 2, 3, 4, 5, 6]
    for done, line in enumerate(lines):
        # The optimizer's lr, after the logger's rounding to 5 digits.
        expected = 0.04 * (0.001 + 0.999 * done / 1000)
        assert line['lr'] == pytest.approx(expected, rel=1e-4)
        assert 0 < line['loss'] < 100
