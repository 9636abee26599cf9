# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Every config builds the model that it is for, trains and predicts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch.nn.modules.batchnorm import _BatchNorm

from mmdet_megdet.runtime import adapt_config
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.configs.expected import TABLE, load
from tests.data.small_coco import coco_like, shrink

SIDE = 64
IMAGES = 2


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp('images')
    coco_like(folder, SIDE, train=IMAGES, val=1)
    return folder


def distinct_models():
    """Names of configs, one where several differ in their training alone."""
    first = {}
    for name, config in TABLE.items():
        model = config.detector, config.norms, config.kinds, config.with_cp
        first.setdefault(str(model), name)
    # Parts of the others': Faster R-CNN, and ResNet-18 with its FPN.
    return set(first.values()) - {'bccd_r18_fpn'}


@pytest.mark.parametrize('name', sorted(distinct_models()))
def test_trains_and_predicts(name, images, tmp_path, monkeypatch):
    # The Runner formats its config four times, a second or two each.
    monkeypatch.setattr(Config, 'pretty_text', '(not formatted in this test)')
    expected = TABLE[name]
    cfg = load(name)
    shrink(cfg, images, tmp_path, SIDE, IMAGES)
    cfg.default_hooks.total_batch.total_batch_size = IMAGES
    cfg.default_hooks.sync_bn_group.bn_size = None
    runner = Runner.from_cfg(adapt_config(cfg))
    model = runner.model
    assert type(model).__name__ == expected.detector
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
    blocks = [m for m in model.backbone.modules() if hasattr(m, 'with_cp')]
    assert {block.with_cp for block in blocks} == {expected.with_cp}
    runner.train()

    # Recomputation does not count again.
    counts = {int(layer.num_batches_tracked) for layer in norms.values()}
    assert counts == {1}
    scalars = runner.message_hub.log_scalars.items()
    losses = [value.current() for name, value in scalars if 'loss' in name]
    assert losses
    assert all(0 <= loss < 100 for loss in losses)
    model.eval()
    (sample,) = model.val_step(next(iter(runner.val_dataloader)))
    found = sample.pred_instances
    assert len(found)
    assert torch.isfinite(found.bboxes).all()
    assert ('masks' in found) == expected.masks
