# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The wrapper's options and its log line, on a single gloo rank."""

import pytest
import torch.distributed as dist
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


class Parts(nn.Module):
    """A part with a layer that is frozen, and one with none."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        self.c = nn.Sequential(nn.InstanceNorm1d(3), nn.BatchNorm1d(3))
        self.c[1].forward = None  # who knows what it does

    def train(self, mode=True):
        super().train(mode)
        self.a.eval()


@pytest.mark.parametrize(('model', 'convert', 'converted', 'expected'), [
    (Parts(), ['b'], 1,
     'INFO BatchNorm: 1 layers are MegDetSyncBN; 2 more are none '
     '(BatchNorm1d): a, c.1.'),
    (Parts(), True, 2,
     'WARNING BatchNorm: 2 layers are MegDetSyncBN; 1 of them are in eval '
     'mode and do not synchronise (norm_eval, frozen_stages): a; 1 more are '
     'none (BatchNorm1d): c.1.'),
    (nn.Linear(2, 2), True, 0,
     'WARNING BatchNorm: 0 layers are MegDetSyncBN.'),
])  # fmt: skip
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
        MegDetDistributedDataParallel(Parts(), convert_bn=['d'])
    with pytest.raises(ConfigError, match='bn_size=8 is for the layers that'):
        MegDetDistributedDataParallel(Parts(), bn_size=8)
