# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The trap of synchronised BatchNorm: ranks are not independent.

A small convolutional net on 4 ranks of 2 images, which are one BN group of 8,
and two micro-steps an update, with weights that stay. The truth is from whole
BN groups in one process.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from mmengine.optim import OptimWrapper
from torch import nn
from torch.nn.functional import cross_entropy

from mmdet_megdet.noise import (
    GradientMeter,
    Split,
    coupled_ranks,
    from_parts,
    noise_scale,
    parts_of,
)
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.threads import run_threads

RANKS, IMAGES, STEPS, UPDATES = 4, 2, 2, 100
GROUP = RANKS * IMAGES


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, bias=False),
            MegDetSyncBN(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, bias=False),
            MegDetSyncBN(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 4)

    def loss(self, images, classes):
        features = self.backbone(images).mean((2, 3))
        return cross_entropy(self.head(features), classes)

    def backbone_gradient(self):
        found = [p.grad.flatten() for p in self.backbone.parameters()]
        return torch.cat(found).double()


def batch(seed, count):
    """Stripes of four directions, in light that varies."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(4, (count,), generator=generator)
    angles = (classes * torch.pi / 4)[:, None, None]
    y, x = torch.arange(12.0)[:, None], torch.arange(12.0)
    stripes = (angles.cos() * x + angles.sin() * y).sin()[:, None]
    light = torch.rand(count, 1, 1, 1, generator=generator) * 3
    noise = torch.randn(count, 3, 12, 12, generator=generator)
    return (stripes + noise) * light + light, classes


def trained(steps):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        net.loss(*batch(10_000 + step, 16)).backward()
        optimizer.step()
    return net.state_dict()


def truth(state, images=GROUP, draws=800):
    """Of the backbone, from whole BN groups by one process."""
    net = Net()
    net.load_state_dict(state)
    found = []
    for seed in range(draws):
        net.zero_grad()
        net.loss(*batch(20_000 + seed, images)).backward()
        found.append(net.backbone_gradient())
    found = torch.stack(found)
    s = images * found.var(0).sum().item()
    return s / (found.mean(0).square().sum().item() - s / images / draws)


def estimates(rank, world_size, state):
    """Ours, and that which takes ranks to be independent, unclamped."""
    net = Net()
    net.load_state_dict(state)
    wrapper = OptimWrapper(torch.optim.SGD(net.parameters(), lr=0.0), STEPS)
    split = Split(STEPS, coupled_ranks(net), GROUP * STEPS)
    meter = GradientMeter(parts_of(net), split)
    ours, naive = [], []
    for update in range(UPDATES):
        meter.attach(wrapper, update)
        squares, before = torch.zeros((), dtype=torch.float64), 0
        for step in range(STEPS):
            meter.begin_micro_step()
            drawn = batch(update * STEPS + step, GROUP)
            own = slice(rank * IMAGES, (rank + 1) * IMAGES)
            loss = net.loss(*(values[own] for values in drawn))
            wrapper.backward(wrapper.scale_loss(loss))
            now = net.backbone_gradient()
            squares += ((now - before) * STEPS).square().sum()
            before = now
        # As DDP does, which threads cannot have.
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        wrapper.step()
        whole = net.backbone_gradient().square().sum().item()
        wrapper.zero_grad()
        meter.detach()
        ours.append(meter.measure()['backbone'])
        dist.all_reduce(squares)
        naive.append(
            from_parts(squares.item(), world_size * STEPS, whole, split.images)
        )
    g2, s = map(sum, zip(*naive, strict=True))
    return noise_scale(*zip(*ours, strict=True)), s / g2


@pytest.mark.parametrize('training', [0, 60])
def test_ranks_of_a_bn_group_are_not_independent(training):
    state = trained(training)
    ours, naive = run_threads(estimates, RANKS, state)[0]
    right = truth(state)
    assert naive < 0
    assert right / 2.5 < ours.value < right * 2.5
    assert ours.low < right < ours.high
