# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The trap of synchronised BatchNorm: ranks are not independent.

A small convolutional net on 4 ranks of 2 images, which are one BN group of 8,
and two micro-steps an update, with weights that stay. The truth is from whole
BN groups in one process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from mmengine.optim import OptimWrapper
from torch import nn
from torch.nn.functional import cross_entropy

from mmdet_megdet import noise
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_threads

RANKS, IMAGES, STEPS, UPDATES = 4, 2, 2, 100
GROUP = RANKS * IMAGES


class Net(nn.Module):
    """Two convolutions with norm layers, and a linear head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential()
        for channels in (3, 16):
            conv = nn.Conv2d(channels, 16, 3, bias=False)
            self.backbone.extend([conv, MegDetSyncBN(16), nn.ReLU()])
        self.head = nn.Linear(16, 4)

    def loss(self, images, classes):
        features = self.backbone(images).mean((2, 3))
        return cross_entropy(self.head(features), classes)


def batch(seed, count):
    """Stripes of four directions in varying light, and their direction."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(4, (count,), generator=generator)
    angles = (classes * torch.pi / 4)[:, None, None]
    y, x = torch.arange(12.0)[:, None], torch.arange(12.0)
    stripes = (angles.cos() * x + angles.sin() * y).sin()[:, None]
    light = torch.rand(count, 1, 1, 1, generator=generator) * 3
    grain = torch.randn(count, 3, 12, 12, generator=generator)
    return (stripes + grain) * light + light, classes


def truth(draws=800):
    """Of the backbone, from whole BN groups by one process."""
    net, found = Net(), []
    for seed in range(draws):
        net.zero_grad()
        net.loss(*batch(20_000 + seed, GROUP)).backward()
        grads = [p.grad.flatten() for p in net.backbone.parameters()]
        found.append(torch.cat(grads).double())
    found = torch.stack(found)
    s = GROUP * found.var(0).sum().item()
    return s / (found.mean(0).square().sum().item() - s / GROUP / draws)


def estimates(rank, world_size):
    """Moments of updates: ours, and with ranks taken to be independent."""
    net = Net()
    own = slice(rank * IMAGES, (rank + 1) * IMAGES)
    wrapper = OptimWrapper(torch.optim.SGD(net.parameters(), lr=0.0), STEPS)
    meters = [
        noise.GradientMeter(
            noise.parts_of(net), noise.Split(STEPS, ranks, GROUP * STEPS)
        )
        for ranks in (noise.coupled_ranks(net), 1)
    ]
    found = []
    for update in range(UPDATES):
        for meter in meters:
            meter.attach(wrapper, update)
        for step in range(STEPS):
            for meter in meters:
                meter.begin_micro_step()
            seen = batch(update * STEPS + step, GROUP)
            loss = net.loss(*(part[own] for part in seen))
            wrapper.backward(wrapper.scale_loss(loss))
        # As DDP does, which threads cannot have.
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        wrapper.step()
        wrapper.zero_grad()
        for meter in reversed(meters):
            meter.detach()
        found.append([meter.measure()['backbone'] for meter in meters])
    return zip(*found, strict=True)


def test_ranks_of_a_bn_group_are_not_independent():
    ours, naive = run_threads(estimates, RANKS)[0]
    scale, right = noise.noise_scale(*zip(*ours, strict=True)), truth()
    assert right / 2.5 < scale.value < right * 2.5
    assert scale.low < right < scale.high
    g2, s = map(sum, zip(*naive, strict=True))
    assert s / g2 < 0
