# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layer inside DDP, in the ways that detectors use it.

The reference is one float64 process that sees the batches of all ranks.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mmdet_megdet.errors import MegDetError
from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups
from tests.distributed.ranks import run_ranks

# A few hundred float64 roundings.
CLOSE = dict(rtol=1e-11, atol=1e-12)


class Detector(nn.Module):
    """A trunk, and a head that is shared by levels of different size."""

    def __init__(self, norm=MegDetSyncBN):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), norm(3))
        self.head = nn.Sequential(nn.Conv2d(3, 3, 1), norm(3), nn.ReLU())
        self.extra = nn.Conv2d(3, 1, 1)
        self.double()

    def forward(self, x, use_extra=True):
        levels = [self.trunk(x)]
        levels.append(nn.functional.avg_pool2d(levels[0], 2))
        loss = sum(
            self.head(level).square().mean((1, 2, 3)) for level in levels
        )
        if use_extra:
            loss = loss + self.extra(levels[1]).square().mean((1, 2, 3))
        return loss.mean()


def batches(world_size, number):
    generator = torch.Generator().manual_seed(1)
    shape = (number, world_size, 2, 2, 8, 8)
    x = torch.randn(shape, dtype=torch.double, generator=generator)
    # The ranks' images differ in level.
    return x + torch.arange(world_size).view(1, -1, 1, 1, 1, 1)


def grads(model):
    return {name: p.grad for name, p in model.named_parameters()}


def unused_on_rank_0(rank, world_size):
    model = Detector()
    ddp = DistributedDataParallel(
        model, broadcast_buffers=False, find_unused_parameters=True
    )
    for batch in batches(world_size, 3):
        model.zero_grad()
        ddp(batch[rank], use_extra=rank != 0).backward()
    return grads(model)


def test_a_head_that_one_rank_leaves_out():
    """DDP's buckets then differ in order; BatchNorm's collectives do not.

    Every step calls the shared head twice, on two sizes.
    """
    model = Detector(nn.BatchNorm2d)
    for batch in batches(2, 3):
        model.zero_grad()
        x = batch.flatten(0, 1)
        levels = [model.trunk(x)]
        levels.append(nn.functional.avg_pool2d(levels[0], 2))
        loss = sum(
            model.head(level).square().mean((1, 2, 3)) for level in levels
        )
        extra = model.extra(levels[1][2:]).square().mean((1, 2, 3))
        ((loss.sum() + extra.sum()) / 4).backward()
    for found in run_ranks(unused_on_rank_0, 2):
        for key, value in grads(model).items():
            torch.testing.assert_close(found[key], value, **CLOSE)


class Branches(nn.Module):
    """Two layers of equal width; which ones run is the caller's choice."""

    def __init__(self):
        super().__init__()
        self.first = MegDetSyncBN(2)
        self.second = MegDetSyncBN(2)

    def forward(self, x, names):
        return [getattr(self, name)(x) for name in names]


def skip_a_layer(rank, world_size, strict):
    model = Branches()
    resolve_bn_groups(model, images_per_gpu=3, strict=strict)
    x = torch.full((3, 2, 2, 2), float(rank))
    try:
        # Rank 1 leaves the first layer out.
        model(x, ['first', 'second'][rank:])
        if rank == 1:
            model(x, ['first'])
    except MegDetError as error:
        return str(error)
    return {k: v for k, v in model.named_buffers() if k.endswith('mean')}


def test_a_skipped_layer_mixes_sums_silently():
    """The documented rule, not a feature: this is what strict mode is for."""
    for buffers in run_ranks(skip_a_layer, 2, False):
        # Each layer took the mean of 0 and 1 with momentum 0.1, though in
        # one of them rank 1's values came out of the other layer's call.
        assert buffers['first.running_mean'].tolist() == (
            pytest.approx([0.05, 0.05])
        )


def test_strict_mode_names_the_layers_on_every_rank():
    for message in run_ranks(skip_a_layer, 2, True):
        assert 'rank 0: first, rank 1: second' in message
        assert 'same order' in message
