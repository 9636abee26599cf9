# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""torch.compile of a model with synchronised layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups
from tests.distributed.ranks import run_ranks


class Model(nn.Module):
    """Layers one after another, not in a loop: a loop around a break is run
    in eager mode by Dynamo, and counted several times."""

    def __init__(self, momentum=None):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.norm1 = MegDetSyncBN(4)
        self.norm2 = MegDetSyncBN(5, momentum=momentum)
        self.double()

    def forward(self, x):
        x = self.norm1(self.conv1(x)).relu()
        return self.norm2(self.conv2(x)).relu()


def train(model, backend, rank):
    """Two steps of SGD on batches that differ from rank to rank."""
    step = torch.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for seed in range(2):
        generator = torch.Generator().manual_seed(10 * seed + rank)
        x = torch.randn(2 + rank, 3, 9, 9, generator=generator).double()
        x.requires_grad_()
        y = step(x)
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
    return y.detach(), x.grad, model.state_dict()


def compiled_and_not(rank, world_size):
    """The process group is first made inside a compiled forward."""
    compiled = train(Model(), 'aot_eager', rank)
    breaks = sum(counters['graph_break'].values())
    eager = train(Model(), None, rank)
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)
    return breaks


def compiled_in_groups_of_one(rank, world_size):
    layers = Model(momentum=0.1)  # None breaks PyTorch's own layers
    resolve_bn_groups(layers, images_per_gpu=2, bn_size=2)
    train(layers, 'eager', 0)
    return sum(counters['graph_break'].values())


@pytest.mark.parametrize(
    ('train_compiled', 'breaks'),
    [(compiled_and_not, 2), (compiled_in_groups_of_one, 0)],
)
def test_compiled_training_equals_eager_with_one_break_a_layer(
    train_compiled, breaks
):
    """And none where a layer does not communicate."""
    assert run_ranks(train_compiled, 2) == [breaks] * 2
