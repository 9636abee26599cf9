# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Every config builds the model that it is for, trains and predicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.nn.modules.batchnorm import _BatchNorm

from mmdet_megdet.runtime import adapt_config
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.configs.expected import TABLE, load
from tests.data.small_coco import coco_like, shrink

SIDE = 64
IMAGES = 2


@pytest.fixture(autouse=True)
def _plain_logs(monkeypatch):
    """The Runner formats its config four times, a second or two each."""
    monkeypatch.setattr(Config, 'pretty_text', '(not formatted in this test)')


@HOOKS.register_module(force=True)
class OutcomeRecorder(Hook):
    """Keeps the losses and the predictions."""

    def before_train(self, runner):
        self.losses, self.predictions = [], []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses.append({k: v.item() for k, v in outputs.items()})

    def after_val_iter(self, runner, batch_idx, data_batch, outputs):
        self.predictions += outputs


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp('images')
    coco_like(folder, SIDE, train=IMAGES, val=1)
    return folder


def small(name, images, work_dir):
    """The config, small enough for one process."""
    cfg = load(name)
    shrink(cfg, images, work_dir, SIDE, IMAGES)
    cfg.default_hooks.total_batch.total_batch_size = IMAGES
    cfg.default_hooks.sync_bn_group.bn_size = None
    cfg.custom_hooks = [dict(type='OutcomeRecorder')]
    return cfg


def check_norms(model, expected):
    """Where norm layers are, of which kind, and whether they are at work."""
    norms = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm)
    }
    parts = Counter(name.split('.')[0] for name in norms)
    assert parts == expected.norms
    model.train()
    for name, layer in norms.items():
        kind = expected.kinds.get(name.split('.')[0], (1e-5, 0.1))
        assert type(layer) is MegDetSyncBN
        assert (layer.eps, layer.momentum) == kind
        assert layer.bn_size == expected.bn_size
        assert layer.training
        assert layer.weight.requires_grad
    return norms.values()


def distinct_models():
    """Names of configs, one where several differ in their training alone."""
    first = {}
    for name, expected in TABLE.items():
        # In float32: mmcv's ops have no other kernels for CPUs.
        training = dict(lr=0, updates=0, factors={}, total=8, clip=0, images=4)
        training |= dict(bn_size=None, wrapper='')
        first.setdefault(str(replace(expected, **training)), name)
    # Parts of the others': Faster R-CNN, and ResNet-18 with its FPN.
    return set(first.values()) - {'bccd_r18_fpn'}


@pytest.mark.parametrize('name', sorted(distinct_models()))
def test_trains_and_predicts(name, images, tmp_path):
    expected = TABLE[name]
    cfg = small(name, images, tmp_path)
    runner = Runner.from_cfg(adapt_config(cfg))
    assert type(runner.model).__name__ == expected.detector
    norms = check_norms(runner.model, expected)
    blocks = [
        m for m in runner.model.backbone.modules() if hasattr(m, 'with_cp')
    ]
    assert {block.with_cp for block in blocks} == {expected.with_cp}
    runner.train()

    # Recomputation does not count again.
    assert {int(layer.num_batches_tracked) for layer in norms} == {1}
    (recorder,) = [h for h in runner.hooks if isinstance(h, OutcomeRecorder)]
    (losses,) = recorder.losses
    assert all(0 <= loss < 100 for loss in losses.values())
    (sample,) = recorder.predictions
    found = sample.pred_instances
    assert len(found)
    assert torch.isfinite(found.bboxes).all()
    assert ('masks' in found) == expected.masks
