# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""torch.compile of a model with synchronised layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups
from tests.distributed.ranks import run_ranks


class Model(nn.Sequential):
    """Calls its layers one after another, not in a loop.

    A loop around a break Dynamo runs in eager mode, and counts several times.
    """

    def forward(self, x):
        conv1, norm1, conv2, norm2 = self
        return norm2(conv2(norm1(conv1(x)).relu())).relu()


def train(backend, rank, momentum=None, bn_size=None):
    """Two steps of SGD on batches that differ from rank to rank."""
    torch.manual_seed(0)
    model = Model(
        nn.Conv2d(3, 4, 3),
        MegDetSyncBN(4),
        nn.Conv2d(4, 5, 3),
        MegDetSyncBN(5, momentum=momentum),
    ).double()
    if bn_size:
        resolve_bn_groups(model, images_per_gpu=2, bn_size=bn_size)
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
    compiled = train('aot_eager', rank)
    breaks = sum(counters['graph_break'].values())
    eager = train(None, rank)
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)
    return breaks


def compiled_in_groups_of_one(rank, world_size):
    # A momentum of None breaks PyTorch's own layers.
    train('eager', 0, momentum=0.1, bn_size=2)
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
