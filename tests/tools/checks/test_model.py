# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import sys
from collections import Counter
from functools import partial

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from mmdet_megdet.annotations import Epoch
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.data import tiny_task  # noqa: F401  registers TinyRegressor
from tests.tools.checks.findings import levels, only
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import cost, model, plan
from checks.report import FAIL, PASS, WARN


class Net(nn.Sequential):
    """Two blocks, the second of which is computed again."""

    def __init__(self, bn_size=None):
        super().__init__()
        self.stem = MegDetSyncBN(4, bn_size=bn_size)
        self.block = nn.Sequential(MegDetSyncBN(8), nn.BatchNorm2d(4))
        self.block.with_cp = True
        self.with_cp = True


def test_batch_norm():
    net = Net()
    assert [f.text for f in model.check_batch_norm(net)] == [
        '2 layers synchronise',
        '1 layers are BatchNorm2d and do not synchronise: block.1',
    ]
    net.stem.eval()
    finding = only(model.check_batch_norm(net), WARN)
    assert '1 of 2 MegDetSyncBN layers are in eval mode' in finding.text
    net.eval()
    assert only(model.check_batch_norm(net), FAIL)
    finding = only(model.check_batch_norm(nn.BatchNorm2d(1)), WARN)
    assert 'no layer is MegDetSyncBN; 1 are another' in finding.text


def test_cost_of_a_step():
    layers = cost.synced_layers(Net())
    assert layers == [cost.Layer(4, 1, None), cost.Layer(8, 2, None)]
    # 9, 8; 17, 17, 16 numbers of 8 bytes; a nanosecond a byte.
    latencies = {4: 4e-9, 1024: 1024e-9}
    seconds = cost.step_seconds(layers, latencies)
    assert seconds == pytest.approx(8 * (9 + 8 + 17 + 17 + 16) * 1e-9)
    # Without the blocks the outer mark would count.
    assert cost.synced_layers(Net(), 16)[0].bn_size == 16


def test_recomputed_forwards_are_those_that_happen():
    """mmdet's ResNet computes its blocks again, and not its stem."""
    net = MODELS.build(
        dict(
            type='mmdet.ResNet',
            depth=18,
            with_cp=True,
            norm_eval=False,
            norm_cfg=dict(type='MegDetSyncBN'),
        )
    )
    calls = Counter()
    synced = []
    for name, layer in net.named_modules():
        if isinstance(layer, MegDetSyncBN):
            synced.append(name)
            layer.observer = lambda _, name=name: calls.update([name])
    net.train()
    x = torch.rand(2, 3, 64, 64, requires_grad=True)
    sum(y.sum() for y in net(x)).backward()
    layers = cost.synced_layers(net)
    assert [layer.forwards for layer in layers] == [calls[n] for n in synced]
    assert sorted(Counter(calls.values()).items()) == [(1, 1), (2, 19)]


def test_layers_that_the_wrapper_converts():
    cfg = Config(
        dict(
            model=dict(type='TinyRegressor'),
            model_wrapper_cfg=dict(convert_bn=['norm'], bn_size=8),
        )
    )
    net = model.build_model(cfg)
    assert cost.synced_layers(net) == [cost.Layer(4, 1, 8)]
    cfg.model_wrapper_cfg.convert_bn = True
    assert len(cost.synced_layers(model.build_model(cfg))) == 1
    cfg.model_wrapper_cfg.convert_bn = False
    assert not cost.synced_layers(model.build_model(cfg))


def test_layers_that_lack_their_hook():
    cfg = Config(dict(default_hooks=dict()))
    assert levels(model.check_hooks(cfg, Net(bn_size=32))) == [FAIL]
    assert not list(model.check_hooks(cfg, Net()))
    cfg = Config(dict(custom_hooks=[dict(type='SyncBNGroupHook')]))
    assert not list(model.check_hooks(cfg, Net(bn_size=32)))


def test_classes_of_the_heads():
    cfg = Config(
        dict(model=dict(a=dict(num_classes=5), b=[dict(num_classes=5)]))
    )
    assert levels(model.check_classes(cfg, tuple('abcde'))) == [PASS]
    assert levels(model.check_classes(cfg, tuple('abc'))) == [FAIL]
    cfg.model.a.num_classes = 3
    assert levels(model.check_classes(cfg, tuple('abc'))) == [WARN]


@pytest.mark.parametrize(
    ('optimizer', 'states'),
    [
        (dict(type='SGD', momentum=0.9), 1),
        (dict(type='AdamW'), 2),
    ],
)
def test_size_of_checkpoints(tmp_path, optimizer, states):
    net = nn.Linear(1000, 1000)
    cfg = Config(
        dict(
            work_dir=str(tmp_path),
            optim_wrapper=dict(optimizer=optimizer),
            train_cfg=dict(max_epochs=7),
            default_hooks=dict(checkpoint=dict(interval=2)),
        )
    )
    (finding,) = model.check_checkpoints(cfg, net)
    size = 4 * 1001 * 1000 * (1 + states)
    assert f'5 checkpoints of about {size / 1e6:.3g} MB' in finding.text
    cfg.default_hooks.checkpoint.update(max_keep_ckpts=1, save_best='auto')
    cfg.custom_hooks = [dict(type='EMAHook')]
    (finding,) = model.check_checkpoints(cfg, net)
    size = 4 * 1001 * 1000 * (2 + states)
    assert f'3 checkpoints of about {size / 1e6:.3g} MB' in finding.text


def test_batch_plan():
    sampler = dict(type='AspectRatioBatchSampler', drop_last=True)
    cfg = Config(
        dict(
            train_dataloader=dict(batch_size=4, batch_sampler=sampler),
            train_cfg=dict(max_epochs=1),
            default_hooks=dict(total=dict(type='TotalBatchHook')),
        )
    )
    check = partial(plan.check_plan, cfg, Net())
    (finding,) = check(8, Epoch(1300, True))
    assert (finding.level, finding.check) == (PASS, 'batch plan')
    assert 'accumulation: 8 micro-steps' in finding.text
    assert 'epoch: 40 micro-batches' in finding.text
    finding = only(check(8, Epoch(1280, True)), FAIL)
    assert 'drop_last=True) then leaves out one full batch' in finding.text
    assert finding.remedy.startswith("Set train_cfg.type='UpdateTrainLoop'")
    assert levels(check(1, Epoch(1280, True))) == [PASS]
    (finding,) = check(8, Epoch(1280, False))
    assert finding.level == PASS
    cfg.train_dataloader.batch_sampler.drop_last = False
    finding = only(check(8, Epoch(1300, True)), WARN)
    assert 'holds 3 image(s) instead of 4' in finding.text
    cfg.train_cfg.type = 'UpdateTrainLoop'
    (finding,) = check(8, Epoch(1300, True))
    assert 'epoch: 5 updates, 20 images over' in finding.text
    finding = only(check(8, Epoch(255, True)), FAIL)
    assert 'has 255 image(s) to train on, fewer than an update' in finding.text
    cfg.train_dataloader.num_batch_per_epoch = 16
    finding = only(check(8, Epoch(1300, False)), FAIL)
    assert 'UpdateBatchSampler refuses it' in finding.text
    cfg.train_cfg.type = 'EpochBasedTrainLoop'
    finding = only(check(8, Epoch(500, False)), FAIL)
    assert 'takes 512 images, and the data set has 500' in finding.text
    (finding,) = check(8, Epoch(1300, False))
    assert 'epoch: 16 micro-batches' in finding.text
    cfg.train_dataloader.num_batch_per_epoch = None
    cfg.train_dataloader.batch_sampler.drop_last = True
    assert only(check(8, Epoch(24, True)), FAIL).text.endswith('needs (25)')
    (finding,) = check(8, Epoch(25, False))
    assert 'epoch: 1 micro-batches' in finding.text
    finding = only(check(6, None), FAIL)
    assert '6 GPU(s) x 4' in finding.text
    assert 'What would run' in finding.remedy
