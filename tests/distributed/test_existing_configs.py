# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The examples of docs/existing_configs.md, each on two ranks."""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from mmdet_megdet.runtime import adapt_config
from mmdet_megdet.sync_bn import MegDetSyncBN, report_batch_norm
from tests.conftest import ROOT
from tests.data.small_coco import coco_like, shrink
from tests.distributed.ranks import run_ranks

PAGE = ROOT / 'docs' / 'existing_configs.md'
RANKS, IMAGES, ACCUMULATION, SIDE = 2, 2, 2, 64


# Synchronised layers by part of the model, and what else it comes to.
TABLE = {
    'retinanet_r50_fpn_1x_coco': dict(norms=dict(backbone=53)),
    'mask-rcnn_r50_fpn_1x_coco': dict(norms=dict(backbone=53), total=16),
    'rtmdet_tiny_8xb32-300e_coco': dict(
        # The stem; four stages of a convolution, three around a block and
        # three in it; the pyramid pooling of the last.
        # In the neck four such blocks, and seven convolutions between them.
        # In the head two branches of two, for each of three levels.
        norms=dict(
            backbone=3 + 4 * (1 + 3 + 3) + 2,
            neck=4 * (3 + 3) + 7,
            bbox_head=2 * 2 * 3,
        ),
        total=256,
        ema=True,
    ),
    'fcos_r50-caffe_fpn_gn-head_1x_coco': dict(
        norms=dict(backbone=53), group_norms=8
    ),
}


def examples():
    """The page's configs, by the name of mmdet's."""
    blocks = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
    return {
        re.search(r"'mmdet::\w+/(.+)\.py'", block)[1]: block
        for block in blocks
    }


def test_every_example_is_tested():
    assert examples().keys() == TABLE.keys()
    for name, block in examples().items():
        base, *added = block.splitlines()
        assert base.startswith("_base_ = 'mmdet::")
        assert len(added) <= 5
        total = re.search(r'total_batch_size=(\d+)', block)
        assert (int(total[1]) if total else None) == TABLE[name].get('total')


@HOOKS.register_module(force=True)
class FirstIteration(Hook):
    """What ranks see and keep, before SyncBNGroupHook pools anything."""

    def before_train(self, runner):
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses.append(outputs['loss'].item())
        if batch_idx == 0:
            self.images = [x.double().sum() for x in data_batch['inputs']]
            self.buffers = {
                name: (layer.running_mean.clone(), layer.running_var.clone())
                for name, layer in runner.model.module.named_modules()
                if isinstance(layer, MegDetSyncBN)
            }


def train(rank, world_size, path, data, work_dir):
    os.environ['LOCAL_RANK'] = str(rank)
    # The Runner formats its config several times, a second or two each.
    Config.pretty_text = '(not formatted in this test)'
    cfg = Config.fromfile(path)
    if cfg.model.type == 'RTMDet':
        without_mosaics(cfg)
    shrink(cfg, data, work_dir, SIDE, IMAGES)
    if 'total_batch' in cfg.default_hooks:
        cfg.default_hooks.total_batch.total_batch_size = (
            world_size * IMAGES * ACCUMULATION
        )
    if 'sync_bn_group' in cfg.default_hooks:
        cfg.default_hooks.sync_bn_group.bn_size = world_size * IMAGES
    cfg.custom_hooks = cfg.get('custom_hooks', [])
    cfg.custom_hooks.append(dict(type='FirstIteration'))
    cfg.launcher = 'pytorch'
    runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    (seen,) = [h for h in runner.hooks if isinstance(h, FirstIteration)]
    return dict(
        images=seen.images,
        buffers=seen.buffers,
        losses=seen.losses,
        accumulation=runner.optim_wrapper._accumulative_counts,
        others=report_batch_norm(runner.model.module).others,
        group_norms=sum(
            isinstance(m, nn.GroupNorm) for m in runner.model.modules()
        ),
        ema=[
            len(report_batch_norm(hook.ema_model).synced)
            + len(report_batch_norm(hook.ema_model).in_eval)
            for hook in runner.hooks
            if isinstance(hook, EMAHook)
        ],
    )


def without_mosaics(cfg):
    """RTMDet's pipeline puts images together, at 640 pixels."""
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', with_bbox=True),
        dict(type='Resize', scale=(SIDE, SIDE), keep_ratio=True),
        dict(type='PackDetInputs'),
    ]
    test_pipeline = [
        *pipeline[:-1],
        dict(
            type='PackDetInputs',
            meta_keys=('img_id', 'ori_shape', 'img_shape', 'scale_factor'),
        ),
    ]
    cfg.train_dataloader.dataset.pipeline = pipeline
    for split in ('val', 'test'):
        cfg[f'{split}_dataloader'].dataset.pipeline = test_pipeline


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp('images')
    coco_like(folder, SIDE, train=RANKS * IMAGES * ACCUMULATION, val=RANKS)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', TABLE)
def test_on_two_ranks(name, images, tmp_path):
    expected = TABLE[name]
    path = tmp_path / f'{name}_megdet.py'
    path.write_text(examples()[name])
    first, second = run_ranks(train, RANKS, path, images, tmp_path)

    for result in (first, second):
        parts = Counter(name.split('.')[0] for name in result['buffers'])
        assert parts == expected['norms']
        assert result['others'] == {}
        assert result['group_norms'] == expected.get('group_norms', 0)
        assert result['ema'] == [parts.total()] * ('ema' in expected)
        assert result['accumulation'] == (
            ACCUMULATION if 'total' in expected else 1
        )
        assert len(result['losses']) == ACCUMULATION
        assert all(0 < loss < 1000 for loss in result['losses'])
    assert set(first['images']).isdisjoint(second['images'])
    for layer, buffers in first['buffers'].items():
        for own, other, at_birth in zip(
            buffers, second['buffers'][layer], (0, 1), strict=True
        ):
            assert torch.equal(own, other)
            assert not (own == at_birth).all()
