# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Every config builds the model that it is for, trains and predicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from mmdet.models import SingleRoIExtractor
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.nn.modules.batchnorm import _BatchNorm

from mmdet_megdet.runtime import adapt_config
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.configs.expected import TABLE, load
from tests.data.small_coco import coco_like, shrink

# `mmcv.ops.nms` is the function of that name.
mmcv_nms = import_module('mmcv.ops.nms')

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
    if name == 'bccd_r18_fpn':
        show_shapes(cfg)
    return cfg


def show_shapes(cfg):
    """Shapes instead of blood cells."""
    shapes = load('shapes_r18_fpn').train_dataloader.dataset.metainfo
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        dataset.metainfo = shapes
        folder = split.replace('test', 'val')
        dataset.data_prefix.img = f'images/{folder}/'
    cfg.model.roi_head.bbox_head.num_classes = len(shapes.classes)


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


def runs_again(model):
    """Whether the backbone's blocks recompute their activations."""
    blocks = [m for m in model.backbone.modules() if hasattr(m, 'with_cp')]
    (with_cp,) = {block.with_cp for block in blocks}
    return with_cp


def run_amp_on_a_cpu(cfg, monkeypatch):
    """bfloat16, since MMEngine knows no other autocast for CPUs.

    mmcv's ops have no kernels for it: they get float32.
    """
    align, nms = SingleRoIExtractor.forward, mmcv_nms.ext_module.nms

    def align_in_float32(self, features, *args, **kwargs):
        return align(self, [f.float() for f in features], *args, **kwargs)

    def nms_in_float32(boxes, scores, **kwargs):
        return nms(boxes.float(), scores.float(), **kwargs)

    monkeypatch.setattr(
        amp_optimizer_wrapper, 'is_cuda_available', lambda: True
    )
    monkeypatch.setattr(SingleRoIExtractor, 'forward', align_in_float32)
    monkeypatch.setattr(mmcv_nms.ext_module, 'nms', nms_in_float32)
    assert cfg.optim_wrapper.dtype == 'float16'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    cfg.optim_wrapper.dtype = 'bfloat16'


def note_half_inputs(layers):
    """What float64 says of each layer's input in bfloat16."""
    moments = {}

    def note(layer, inputs):
        if layer.training:
            (x,) = inputs
            assert x.dtype == torch.bfloat16
            x = x.detach().double().transpose(0, 1).flatten(1)
            moments[layer] = x.mean(1), x.var(1), x.abs().amax(1), x.shape[1]

    for layer in layers:
        layer.register_forward_pre_hook(note)
    return moments


def check_float32_statistics(moments):
    """As exact as float32 sums, and not as bfloat16."""
    in_bfloat16 = 0
    for layer, (mean, var, largest, count) in moments.items():
        # The sum's worst case, and the rounding of the buffers.
        rounding = (count + 2) * 2.0**-24
        assert rounding < 2.0**-12
        error = (layer.running_mean - 0.1 * mean).abs()
        assert (error <= 0.1 * rounding * largest).all()
        error = (mean.bfloat16() - mean).abs()
        in_bfloat16 += int((error > rounding * largest).sum())
        error = (layer.running_var - (0.9 + 0.1 * var)).abs()
        # Of squares; the mean's own error comes in twice.
        bound = 0.1 * 3 * rounding * largest.square() + 2.0**-23
        assert (error <= bound * count / (count - 1)).all()
    # What it is told apart from.
    assert in_bfloat16 > 1000 or not moments


def distinct_models():
    """Names of configs, one where several differ in their schedule alone."""
    first = {}
    for name, expected in TABLE.items():
        schedule = dict(lr=0, updates=0, factors={}, total=8, clip=0, images=4)
        first.setdefault(
            str(replace(expected, bn_size=None, **schedule)), name
        )
    return first.values()


@pytest.mark.parametrize(
    'name',
    [
        # CPUs emulate bfloat16.
        pytest.param(
            name, marks=[pytest.mark.slow] if name.endswith('_amp') else []
        )
        for name in distinct_models()
    ],
)
def test_trains_and_predicts(name, images, tmp_path, monkeypatch):
    expected = TABLE[name]
    in_amp = expected.wrapper == 'AmpOptimWrapper'
    cfg = small(name, images, tmp_path)
    if in_amp:
        run_amp_on_a_cpu(cfg, monkeypatch)
    runner = Runner.from_cfg(adapt_config(cfg))
    assert type(runner.model).__name__ == expected.detector
    norms = check_norms(runner.model, expected)
    moments = note_half_inputs(norms) if in_amp else {}
    assert runs_again(runner.model) == expected.with_cp
    runner.train()

    # Recomputation does not count again.
    assert {int(layer.num_batches_tracked) for layer in norms} == {1}
    assert len(moments) == (len(norms) if in_amp else 0)
    check_float32_statistics(moments)
    (recorder,) = [h for h in runner.hooks if isinstance(h, OutcomeRecorder)]
    (losses,) = recorder.losses
    assert all(0 <= loss < 100 for loss in losses.values())
    (sample,) = recorder.predictions
    found = sample.pred_instances
    assert len(found)
    assert torch.isfinite(found.bboxes).all()
    assert ('masks' in found) == expected.masks
