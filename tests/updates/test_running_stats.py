# Copyright (c) mmdet_megdet contributors. All rights reserved.
import copy

import pytest
import torch
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN
from mmdet_megdet.updates.running_stats import RunningStatistics


def update(layer, statistics, batches, calls=1):
    statistics.begin()
    for step, x in enumerate(batches):
        with statistics.micro_step(step):
            for _ in range(calls):
                layer(x)


def inputs(seed, steps=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, 5, 4, 3, 3, generator=generator).double() + seed


@pytest.mark.parametrize('calls', [1, 2])
@pytest.mark.parametrize(
    ('kind', 'options'),
    [
        (MegDetSyncBN, dict(momentum=0.1)),
        (MegDetSyncBN, dict(momentum=None)),
        (nn.BatchNorm2d, dict(momentum=None)),
        (nn.InstanceNorm2d, dict(track_running_stats=True)),
    ],
)
def test_an_update_moves_by_the_mean_of_its_micro_steps(kind, options, calls):
    """As pooling of as many layers, of which each sees one of them."""
    layer = kind(4, **options).double().train()
    pooled = copy.deepcopy(layer)
    statistics = RunningStatistics(layer)
    for seed in range(4):
        update(layer, statistics, inputs(seed), calls)
        statistics.finish()
        alone = [copy.deepcopy(pooled) for _ in inputs(seed)]
        for one, x in zip(alone, inputs(seed), strict=True):
            for _ in range(calls):
                one(x)
        for name in ('running_mean', 'running_var'):
            values = torch.stack([getattr(one, name) for one in alone])
            getattr(pooled, name).copy_(values.mean(0))
        pooled.num_batches_tracked.copy_(alone[0].num_batches_tracked)
    torch.testing.assert_close(
        dict(layer.named_buffers()),
        dict(pooled.named_buffers()),
        rtol=1e-14,
        atol=0,
    )


def test_what_is_skipped_leaves_no_trace_and_what_stands_still_no_rounding():
    torch.manual_seed(0)
    frozen = nn.BatchNorm2d(4).eval()
    frozen.running_mean.normal_()
    layer = nn.Sequential(frozen, nn.BatchNorm2d(4), nn.ReLU())
    statistics = RunningStatistics(layer)
    before = copy.deepcopy(layer.state_dict())
    update(layer, statistics, inputs(2, 7).float())
    statistics.finish()
    assert torch.equal(frozen.running_mean, before['0.running_mean'])
    assert not torch.equal(layer[1].running_mean, before['1.running_mean'])
    before = copy.deepcopy(layer.state_dict())
    update(layer, statistics, inputs(3).float() * float('nan'))
    statistics.restore()
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
