# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The wrapper's options and its log line, on a single gloo rank."""

from __future__ import annotations

import logging

import pytest
import torch.distributed as dist
from mmdet.models import ResNet
from mmengine.logging import MMLogger
from torch import nn

from mmdet_megdet.runtime import MegDetDistributedDataParallel
from mmdet_megdet.sync_bn import MegDetSyncBN


@pytest.fixture(autouse=True)
def _gloo_of_one(tmp_path):
    dist.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.fixture
def log():
    """What MMEngine's current logger, as on rank 0, is told."""
    told = logging.Handler(logging.INFO)
    told.records = []
    told.emit = told.records.append
    logger = MMLogger.get_current_instance()
    logger.addHandler(told)
    yield told.records
    logger.removeHandler(told)


def backbone(**kwargs):
    options = dict(frozen_stages=-1, norm_eval=False, base_channels=4)
    return ResNet(18, **{**options, **kwargs})


def messages(records):
    return [(r.levelname, r.getMessage()) for r in records]


def test_conversion_is_logged_once_training_starts(log):
    model = MegDetDistributedDataParallel(
        backbone(), convert_bn=True, bn_size=16
    )
    layers = [m for m in model.modules() if isinstance(m, MegDetSyncBN)]
    assert len(layers) == 20
    assert {layer.bn_size for layer in layers} == {16}
    model.eval()
    assert messages(log) == []
    assert model.train() is model
    assert model.training
    model.train()
    expected = 'BatchNorm: 20 layers are MegDetSyncBN.'
    assert messages(log) == [('INFO', expected)]


def test_layers_that_will_not_synchronise_are_named(log):
    model = backbone(frozen_stages=1)
    model.layer4[1].bn2.requires_grad_(False)
    model.extra = nn.Sequential(nn.InstanceNorm1d(3), Activated(3))
    with pytest.warns(UserWarning, match=r'extra\.1 \(Activated: forward\)'):
        wrapped = MegDetDistributedDataParallel(model, convert_bn=True)
    wrapped.train()
    ((level, text),) = messages(log)
    assert level == 'WARNING'
    assert '20 layers are MegDetSyncBN' in text
    assert '1 of them have frozen weights and synchronise their' in text
    assert ': layer4.1.bn2' in text
    assert '5 of them are in eval mode and do not synchronise' in text
    assert ': bn1, layer1.0.bn1' in text
    assert '1 more are none (1 Activated): extra.1.' in text


class Activated(nn.BatchNorm1d):
    def forward(self, input):
        return super().forward(input).relu()


def test_parts_by_name(log):
    model = nn.ModuleDict({name: nn.BatchNorm1d(3) for name in 'abc'})
    wrapped = MegDetDistributedDataParallel(model, convert_bn=['a', 'c'])
    kinds = [type(model[name]) for name in 'abc']
    assert kinds == [MegDetSyncBN, nn.BatchNorm1d, MegDetSyncBN]
    wrapped.train()
    expected = '2 layers are MegDetSyncBN; 1 more are none (1 BatchNorm1d): b.'
    assert messages(log) == [('INFO', f'BatchNorm: {expected}')]


def test_part_that_is_not_there():
    model = nn.ModuleDict(dict(backbone=nn.BatchNorm1d(3)))
    message = (
        r"convert_bn=\['back'\]: ModuleDict has no part back. .* backbone"
    )
    with pytest.raises(ValueError, match=message):
        MegDetDistributedDataParallel(model, convert_bn=['back'])


def test_norm_eval_leaves_nothing_to_synchronise(log):
    model = MegDetDistributedDataParallel(
        backbone(norm_eval=True), convert_bn=True
    )
    model.train()
    ((level, text),) = messages(log)
    assert level == 'WARNING'
    assert '20 of them are in eval mode' in text
    assert text.endswith('layer1.1.bn1, layer1.1.bn2 and 15 more.')


def test_nothing_to_convert(log):
    model = MegDetDistributedDataParallel(nn.Linear(2, 2), convert_bn=True)
    model.train()
    expected = 'BatchNorm: 0 layers are MegDetSyncBN.'
    assert messages(log) == [('WARNING', expected)]


@pytest.mark.parametrize(
    ('model', 'expected'),
    [
        (nn.Linear(2, 2), None),
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
            'BatchNorm: 0 layers are MegDetSyncBN; 1 more are none '
            '(1 BatchNorm1d): 1.',
        ),
    ],
)
def test_where_nobody_asked_for_it(model, expected, log):
    MegDetDistributedDataParallel(model).train()
    assert messages(log) == ([('INFO', expected)] if expected else [])


def test_bn_size_without_conversion():
    with pytest.raises(ValueError, match='bn_size=8 is for the layers that'):
        MegDetDistributedDataParallel(nn.BatchNorm1d(3), bn_size=8)


def test_torch_sync_bn_on_the_cpu_names_the_likely_mistake():
    model = nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3))
    with pytest.raises(ValueError, match='1 layers are nn') as e:
        MegDetDistributedDataParallel(model)
    assert 'sets sync_bn, remove it' in str(e.value)
    MegDetDistributedDataParallel(model, convert_bn=True)
    assert type(model[1]) is MegDetSyncBN
