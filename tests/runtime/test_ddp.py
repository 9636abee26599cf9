# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The wrapper's options and its log line, on a single gloo rank."""

from __future__ import annotations

import logging

import pytest
import torch.distributed as dist
from mmdet.models import ResNet
from mmengine.logging import MMLogger
from torch import nn

from mmdet_megdet.errors import ConfigError
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
    told.emit = lambda r: told.records.append((r.levelname, r.getMessage()))
    logger = MMLogger.get_current_instance()
    logger.addHandler(told)
    yield told.records
    logger.removeHandler(told)


def backbone(**kwargs):
    options = dict(frozen_stages=-1, norm_eval=False, base_channels=4)
    return ResNet(18, **{**options, **kwargs})


def test_conversion_is_logged_once_training_starts(log):
    model = MegDetDistributedDataParallel(
        backbone(), convert_bn=True, bn_size=16
    )
    layers = [m for m in model.modules() if isinstance(m, MegDetSyncBN)]
    assert {layer.bn_size for layer in layers} == {16}
    model.eval()
    assert log == []
    assert model.train().train() is model
    assert log == [('INFO', 'BatchNorm: 20 layers are MegDetSyncBN.')]


class Activated(nn.BatchNorm1d):
    def forward(self, input):
        return super().forward(input).relu()


def test_layers_that_will_not_synchronise_are_named(log):
    model = backbone(frozen_stages=1)
    model.extra = nn.Sequential(nn.InstanceNorm1d(3), Activated(3))
    with pytest.warns(UserWarning, match=r'extra\.1 \(Activated: forward\)'):
        wrapped = MegDetDistributedDataParallel(model, convert_bn=True)
    wrapped.train()
    expected = (
        'BatchNorm: 20 layers are MegDetSyncBN; 5 of them are in eval mode '
        'and do not synchronise (norm_eval, frozen_stages): bn1, '
        'layer1.0.bn1, layer1.0.bn2, layer1.1.bn1, layer1.1.bn2; 1 more are '
        'none (Activated): extra.1.'
    )
    assert log == [('WARNING', expected)]


def test_parts_by_name(log):
    model = nn.ModuleDict({name: nn.BatchNorm1d(3) for name in 'abc'})
    with pytest.raises(ConfigError, match=r'no attribute `d`.*are a, b, c'):
        MegDetDistributedDataParallel(model, convert_bn=['d'])
    wrapped = MegDetDistributedDataParallel(model, convert_bn=['a', 'c'])
    kinds = [type(model[name]) for name in 'abc']
    assert kinds == [MegDetSyncBN, nn.BatchNorm1d, MegDetSyncBN]
    wrapped.train()
    expected = '2 layers are MegDetSyncBN; 1 more are none (BatchNorm1d): b.'
    assert log == [('INFO', f'BatchNorm: {expected}')]


@pytest.mark.parametrize(
    ('model', 'convert', 'expected'),
    [
        (nn.Linear(2, 2), True, ('WARNING', '0 layers are MegDetSyncBN.')),
        (nn.Linear(2, 2), False, None),
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
            False,
            ('INFO', '1 more are none (BatchNorm1d): 1.'),
        ),
    ],
)
def test_nothing_to_synchronise(model, convert, expected, log):
    MegDetDistributedDataParallel(model, convert_bn=convert).train()
    assert [level for level, _ in log] == ([expected[0]] if expected else [])
    assert not expected or log[0][1].endswith(expected[1])


def test_bn_size_without_conversion():
    with pytest.raises(ConfigError, match='bn_size=8 is for the layers that'):
        MegDetDistributedDataParallel(nn.BatchNorm1d(3), bn_size=8)
