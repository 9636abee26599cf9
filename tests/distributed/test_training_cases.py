# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layer inside DDP and under torch.compile, as detectors use it."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from mmdet_megdet.errors import MegDetError
from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups
from tests.distributed.ranks import run_ranks


class Detector(nn.Module):
    """A trunk, and a head that is shared by levels of different size."""

    def __init__(self, norm=MegDetSyncBN):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), norm(3))
        self.head = nn.Sequential(nn.Conv2d(3, 3, 1), norm(3), nn.ReLU())
        self.extra = nn.Conv2d(3, 1, 1)
        self.double()

    def forward(self, x, extra):
        """The loss; ``extra`` weighs images in another head."""
        fine = self.trunk(x)
        coarse = nn.functional.avg_pool2d(fine, 2)
        found = [(self.head(fine), 1), (self.head(coarse), 1)]
        if extra.any():
            found.append((self.extra(coarse), extra))
        return sum(
            (weight * y.square().mean((1, 2, 3))).mean() for y, weight in found
        )


def gradients(model, batches):
    for x, extra in batches:
        model.zero_grad()
        model(x, extra).backward()
    return [parameter.grad for parameter in model.parameters()]


def unused_on_rank_0(rank, world_size, batches):
    ddp = DistributedDataParallel(
        Detector(), broadcast_buffers=False, find_unused_parameters=True
    )
    shares = [(x.chunk(2)[rank], extra.chunk(2)[rank]) for x, extra in batches]
    return gradients(ddp, shares)


def test_a_head_that_one_rank_leaves_out():
    """DDP's buckets then differ in order; BatchNorm's collectives do not.

    Every step calls the shared head twice, on two sizes. The reference is one
    float64 process that sees the batches of both ranks.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 4, 2, 8, 8, dtype=torch.double, generator=generator)
    x[:, 2:] += 1  # the ranks' images differ in level
    extra = torch.tensor([0, 0, 1, 1])
    batches = [(batch, extra) for batch in x]
    expected = gradients(Detector(nn.BatchNorm2d), batches)
    for found in run_ranks(unused_on_rank_0, 2, batches):
        # A few hundred float64 roundings.
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def skip_a_layer(rank, world_size, strict):
    """Rank 1 leaves the first layer out, and calls it later."""
    names = ['first', 'second']
    model = nn.ModuleDict({name: MegDetSyncBN(2) for name in names})
    resolve_bn_groups(model, images_per_gpu=3, strict=strict)
    told = '(?s)same time.*rank 0: first, rank 1: second'
    refused = pytest.raises(MegDetError, match=told)
    with refused if strict else nullcontext():
        for name in names[:: 1 - 2 * rank]:
            model[name](torch.full((3, 2, 2, 2), float(rank)))
        # Each layer took the mean of 0 and 1 with momentum 0.1, though in
        # one of them rank 1's values came out of the other layer's call.
        for layer in model.values():
            assert layer.running_mean.tolist() == pytest.approx([0.05, 0.05])


def test_a_skipped_layer_mixes_sums_silently():
    """The documented rule, not a feature: this is what strict mode is for."""
    run_ranks(skip_a_layer, 2, False)


def test_strict_mode_names_the_layers_on_every_rank():
    run_ranks(skip_a_layer, 2, True)


class Compiled(nn.Sequential):
    """Calls its layers one after another, not in a loop.

    A loop around a break Dynamo runs in eager mode, and counts several times.
    """

    def forward(self, x):
        conv1, norm1, conv2, norm2 = self
        return norm2(conv2(norm1(conv1(x)).relu())).relu()


def train(backend, rank, momentum=None, bn_size=None):
    """Two steps of SGD on batches that differ from rank to rank."""
    torch.manual_seed(0)
    model = Compiled(
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
