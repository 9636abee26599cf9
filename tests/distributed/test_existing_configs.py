# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The examples of docs/existing_configs.md, each on two ranks."""

import re
from collections import Counter

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN, report_batch_norm
from mmdet_megdet.upstream.mmengine_names import accumulation_of
from tests.data import tiny_run
from tests.data.small_coco import coco_like, shrink
from tests.distributed.ranks import run_ranks
from tests.tools.command import ROOT

PAGE = ROOT / 'docs' / 'existing_configs.md'
RANKS, IMAGES, ACCUMULATION, SIDE = 2, 2, 2, 64
# Synchronised layers by part of the model, and what else it comes to.
TABLE = {
    'retinanet_r50_fpn_1x_coco': dict(norms=dict(backbone=53)),
    'mask-rcnn_r50_fpn_1x_coco': dict(norms=dict(backbone=53), total=16),
    'rtmdet_tiny_8xb32-300e_coco': dict(
        # The stem, four stages of seven, the pyramid pooling; four blocks
        # of six and seven convolutions; three levels of two branches of two.
        norms=dict(backbone=3 + 28 + 2, neck=24 + 7, bbox_head=12),
        total=256,
        ema=True,
    ),
    'fcos_r50-caffe_fpn_gn-head_1x_coco': dict(norms=dict(backbone=53)),
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
        assert block.startswith("_base_ = 'mmdet::")
        assert len(block.splitlines()) <= 6
        assert ('total_batch_size' in block) == ('total' in TABLE[name])


@HOOKS.register_module(force=True)
class FirstIteration(Hook):
    """What ranks see and keep, before SyncBNGroupHook pools anything."""

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if batch_idx == 0:
            runner.images = {x.sum().item() for x in data_batch['inputs']}
            runner.buffers = {
                name: (layer.running_mean.clone(), layer.running_var.clone())
                for name, layer in runner.model.module.named_modules()
                if isinstance(layer, MegDetSyncBN)
            }


def train(rank, world_size, path, data, expected):
    # The Runner formats its config several times, a second or two each.
    Config.pretty_text = '(not formatted in this test)'
    cfg = Config.fromfile(path)
    if cfg.model.type == 'RTMDet':
        without_mosaics(cfg)
    shrink(cfg, data, path.parent, SIDE, IMAGES)
    accumulation = 1
    if 'total' in expected:
        total_batch = cfg.default_hooks.total_batch
        assert total_batch.total_batch_size == expected['total']
        accumulation = ACCUMULATION
        total_batch.total_batch_size = world_size * IMAGES * ACCUMULATION
    if 'sync_bn_group' in cfg.default_hooks:
        cfg.default_hooks.sync_bn_group.bn_size = world_size * IMAGES
    cfg.default_hooks.first = dict(type='FirstIteration')
    runner = tiny_run.train(cfg)

    assert accumulation_of(runner.optim_wrapper) == accumulation
    report = report_batch_norm(runner.model.module)
    layers = [*report.synced, *report.in_eval]
    parts = Counter(name.split('.')[0] for name in layers)
    assert parts == expected['norms']
    assert report.others == {}
    kinds = Counter(map(type, runner.model.modules()))
    # FCOS's head, which stays as it is.
    assert kinds[nn.GroupNorm] == (8 if 'fcos' in path.name else 0)
    averaged = [h.ema_model for h in runner.hooks if isinstance(h, EMAHook)]
    assert len(averaged) == ('ema' in expected)
    for model in averaged:
        copied = report_batch_norm(model)
        assert len([*copied.synced, *copied.in_eval]) == len(layers)
    losses, _ = runner.message_hub.get_scalar('train/loss').data
    assert len(losses) == ACCUMULATION
    assert ((losses > 0) & (losses < 1000)).all()
    assert runner.buffers.keys() == set(layers)
    return runner.images, runner.buffers


def without_mosaics(cfg):
    """RTMDet's pipeline puts images together, at 640 pixels."""
    steps = cfg.test_dataloader.dataset.pipeline
    pipeline = [step for step in steps if step.type != 'Pad']
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset.pipeline = pipeline


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp('images')
    coco_like(folder, SIDE, train=RANKS * IMAGES * ACCUMULATION, val=RANKS)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', TABLE)
def test_on_two_ranks(name, images, tmp_path):
    path = tmp_path / f'{name}_megdet.py'
    path.write_text(examples()[name])
    (one, first), (other, second) = run_ranks(
        train, RANKS, path, images, TABLE[name]
    )
    assert one.isdisjoint(other)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    for mean, var in first.values():
        assert mean.any()
        assert not (var == 1).all()
