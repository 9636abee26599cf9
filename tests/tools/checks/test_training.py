# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The doctor's lines on a config's model and batch plan."""

import re

import pytest
from checks import training
from checks.report import FAIL, PASS, WARN
from mmengine.config import Config
from torch import nn

from mmdet_megdet.annotations import Epoch
from mmdet_megdet.sync_bn import MegDetSyncBN, bn_sizes
from tests.data import tiny_task  # noqa: F401  registers TinyRegressor
from tests.tools.checks.findings import levels, only


def test_batch_norm():
    net = nn.Sequential(
        MegDetSyncBN(4), nn.Sequential(MegDetSyncBN(8), nn.BatchNorm2d(4))
    )
    assert [f.text for f in training.check_batch_norm(net)] == [
        '2 layers synchronise',
        '1 layers are another BatchNorm and do not synchronise: 1.1',
    ]
    net[0].eval()
    finding = only(training.check_batch_norm(net), WARN)
    assert '1 of 2 MegDetSyncBN layers are in eval mode' in finding.text
    net.eval()
    assert only(training.check_batch_norm(net), FAIL)
    finding = only(training.check_batch_norm(nn.BatchNorm2d(1)), WARN)
    assert 'no layer is MegDetSyncBN; 1 are another' in finding.text


@pytest.mark.parametrize(
    ('convert', 'sizes'), [(['norm'], [8]), (True, [8]), (False, [])]
)
def test_layers_that_the_wrapper_converts(convert, sizes):
    wrapper = dict(convert_bn=convert, bn_size=8)
    cfg = Config(
        dict(model=dict(type='TinyRegressor'), model_wrapper_cfg=wrapper)
    )
    assert bn_sizes(training.build_model(cfg)) == sizes


def test_weights():
    missing = dict(type='Pretrained', checkpoint='/no/such.pth')
    address = dict(type='Pretrained', checkpoint='torchvision://resnet50')
    head = dict(init_cfg=address, pretrained=__file__)
    cfg = Config(
        dict(model=dict(neck=[missing], head=head), load_from='/nor/this.pth')
    )
    assert [f.text for f in training.check_weights(cfg)] == [
        'there is no file /no/such.pth',
        'there is no file /nor/this.pth',
    ]


def test_classes_of_the_heads():
    for first, level in ((3, PASS), (5, WARN)):
        heads = dict(a=dict(num_classes=first), b=[dict(num_classes=3)])
        cfg = Config(dict(model=heads))
        assert levels(training.check_classes(cfg, tuple('abc'))) == [level]
    assert levels(training.check_classes(cfg, tuple('abcd'))) == [FAIL]


UPDATES = dict(train_cfg__type='UpdateTrainLoop')
CUT = dict(train_dataloader__num_batch_per_epoch=16)


@pytest.mark.parametrize(
    ('gpus', 'epoch', 'settings', 'level', 'words'),
    [
        (8, (1300, True), {}, PASS, 'accumulation: 8 .*epoch: 40 micro-batch'),
        (8, (1280, True), {}, FAIL, 'leaves out one .*Set train_cfg.type='),
        (1, (1280, True), {}, PASS, 'epoch: 320 micro-batches'),
        (8, (1280, False), {}, PASS, 'epoch: 40 micro-batches'),
        # DefaultSampler repeats images: four for each GPU, and none to spare.
        (8, (25, False), {}, PASS, 'epoch: 1 micro-batches'),
        (8, (24, False), {}, FAIL, 'fewer than the 32 of a batch'),
        (6, None, {}, FAIL, r'6 GPU\(s\) x 4.*What would run'),
        (0, None, {}, WARN, 'not checked: this machine has no GPU'),
        (8, (500, False), CUT, FAIL, 'fewer than the 512 of num_batch_per_'),
        (8, (1300, False), CUT, PASS, 'epoch: 16 micro-batches'),
        (8, (1300, True), UPDATES, PASS, 'epoch: 5 updates, 20 images over'),
        (8, (255, True), UPDATES, FAIL, 'fewer than the 256 of an update'),
        (8, (1300, False), CUT | UPDATES, FAIL, 'BatchSampler refuses it'),
    ],
)
def test_batch_plan(gpus, epoch, settings, level, words):
    """Of mmdet's batches by orientation, under a stock loop or ours."""
    sampler = dict(type='AspectRatioBatchSampler', drop_last=True)
    cfg = Config(
        dict(
            train_dataloader=dict(batch_size=4, batch_sampler=sampler),
            train_cfg=dict(max_epochs=1),
            default_hooks=dict(total=dict(type='TotalBatchHook')),
        )
    )
    cfg.merge_from_dict({k.replace('__', '.'): v for k, v in settings.items()})
    epoch = epoch and Epoch(*epoch)
    findings = list(training.check_plan(cfg, MegDetSyncBN(4), gpus, epoch))
    assert re.search(words, '. '.join(only(findings, level)[1:]))
    # Besides, the plan itself.
    assert {f.level for f in findings} <= {level, PASS}
    assert {f.check for f in findings} == {'batch plan'}
