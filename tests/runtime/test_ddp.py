# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The wrapper's options and its log line, on a single gloo rank."""

from __future__ import annotations

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


def frozen():
    model = ResNet(18, base_channels=4, frozen_stages=1, norm_eval=False)
    model.extra = nn.Sequential(nn.InstanceNorm1d(3), nn.BatchNorm1d(3))
    model.extra[1].forward = None  # who knows what it does
    return model


def parts():
    return nn.ModuleDict({name: nn.BatchNorm1d(3) for name in 'abc'})


@pytest.mark.parametrize(
    ('model', 'convert', 'converted', 'expected'),
    [
        (
            parts(),
            ['a', 'c'],
            2,
            'INFO BatchNorm: 2 layers are MegDetSyncBN; 1 more are none '
            '(BatchNorm1d): b.',
        ),
        (
            frozen(),
            True,
            20,
            'WARNING BatchNorm: 20 layers are MegDetSyncBN; 5 of them are in '
            'eval mode and do not synchronise (norm_eval, frozen_stages): '
            'bn1, layer1.0.bn1, layer1.0.bn2, layer1.1.bn1, layer1.1.bn2; 1 '
            'more are none (BatchNorm1d): extra.1.',
        ),
        (
            nn.Linear(2, 2),
            True,
            0,
            'WARNING BatchNorm: 0 layers are MegDetSyncBN.',
        ),
    ],
)
def test_what_synchronises_is_logged_once_training_starts(
    monkeypatch, model, convert, converted, expected
):
    lines = []
    monkeypatch.setattr(
        MMLogger.get_current_instance(),
        'handle',
        lambda r: lines.append(f'{r.levelname} {r.getMessage()}'),
    )
    wrapped = MegDetDistributedDataParallel(
        model, convert_bn=convert, bn_size=16
    )
    layers = [m for m in model.modules() if isinstance(m, MegDetSyncBN)]
    assert [layer.bn_size for layer in layers] == [16] * converted
    model.eval()
    assert lines == []
    assert wrapped.train().train() is wrapped
    assert lines == [expected]


def test_refusals():
    with pytest.raises(ConfigError, match=r'no attribute `d`.*are a, b, c'):
        MegDetDistributedDataParallel(parts(), convert_bn=['d'])
    with pytest.raises(ConfigError, match='bn_size=8 is for the layers that'):
        MegDetDistributedDataParallel(parts(), bn_size=8)
