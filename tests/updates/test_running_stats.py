# Copyright (c) mmdet_megdet contributors. All rights reserved.
import copy

import pytest
import torch
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN
from mmdet_megdet.updates.running_stats import RunningStatistics


def update(layer, statistics, batches):
    statistics.begin()
    for step, x in enumerate(batches):
        with statistics.micro_step(step):
            layer(layer(x))


def inputs(seed, steps=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, 5, 4, 3, 3, generator=generator).double() + seed


@pytest.mark.parametrize(
    'layer',
    [
        MegDetSyncBN(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.Identity(),  # has none
    ],
)
def test_an_update_moves_by_the_mean_of_its_micro_steps(layer):
    """As pooling of as many layers, of which each sees one of them."""
    layer.double().train()
    statistics = RunningStatistics(layer)
    for seed in range(4):
        alone = [copy.deepcopy(layer) for _ in inputs(seed)]
        for one, x in zip(alone, inputs(seed), strict=True):
            one(one(x))
        expected = {
            name: sum(one.get_buffer(name) for one in alone) / 3
            for name, _ in layer.named_buffers()
        }
        update(layer, statistics, inputs(seed))
        statistics.finish()
        for name, value in layer.named_buffers():
            mean = expected[name].to(value.dtype)
            torch.testing.assert_close(value, mean, rtol=1e-14, atol=0)


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
