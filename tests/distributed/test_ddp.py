# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The model wrapper on two ranks: buffers, and communication hooks."""

import pytest
import torch
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import MegDetDistributedDataParallel
from tests.distributed.ranks import run_ranks

SHAPE = 16, 24
REFUSED = [
    ('fp8', 'fp16_compress, bf16_compress, powerSGD'),
    (dict(matrix_approximation_rank=2), 'names no communication hook'),
    (dict(type='fp16_compress', rank=2), 'fp16_compress has no arguments'),
    (dict(type='powerSGD', rank=2), 'unexpected keyword argument .rank'),
    (dict(type='powerSGD', start_powerSGD_iter=1), 'powerSGD.* > 1'),
]


class Sum(nn.Module):
    """Its gradient is what it is called with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SHAPE))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def reduced(comm_hook, gradients):
    """What DDP makes of the gradients of one step after the other."""
    model = MegDetDistributedDataParallel(Sum(), comm_hook=comm_hook)
    found = []
    for gradient in gradients:
        model.zero_grad()
        model(gradient).backward()
        found.append(model.module.weight.grad)
    return found


def hooks(rank, world_size):
    torch.manual_seed(0)
    gradient = torch.randn(SHAPE)
    normal = 2 + gradient.abs()
    for name, dtype in (
        ('fp16_compress', torch.float16),
        ('bf16_compress', torch.bfloat16),
    ):
        (found,) = reduced(name, [normal])
        # Halves of what was rounded once, and their sum, are exact.
        assert torch.equal(found, normal.to(dtype).float())
    # PyTorch's own defaults make gradients of zeros NaN, or zero for ever.
    zeros = [torch.zeros(SHAPE)] * 3
    for directions in (1, 3):
        options = dict(type='powerSGD', start_powerSGD_iter=2)
        options['matrix_approximation_rank'] = directions
        *nothing, found = reduced(options, [*zeros, gradient])
        assert all((gradient == 0).all() for gradient in nothing)
        # A projection of the gradient on as many directions.
        assert torch.linalg.matrix_rank(found, rtol=1e-5) == directions
        assert (found - gradient).norm() < gradient.norm()
    for comm_hook, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            reduced(comm_hook, [])


def test_hooks_by_name_and_refusals():
    run_ranks(hooks, 2)


def buffers(rank, world_size):
    for options, expected in (
        ({}, rank + 1),
        (dict(broadcast_buffers=True, find_unused_parameters=True), 1),
    ):
        module = nn.Linear(2, 1)
        module.register_buffer('seen', torch.zeros(()))
        # The Runner gives the device.
        model = MegDetDistributedDataParallel(module, [rank], **options)
        # MMDistributedDataParallel's own are handed on.
        assert model.find_unused_parameters == bool(options)
        module.seen.fill_(rank + 1)
        model(torch.tensor([1.0, 10.0]) * (rank + 1)).backward()
        assert module.seen == expected
        # Rank r's gradient is (1, 10) * (r + 1): the mean of 1 and 2 is 1.5.
        assert module.weight.grad.tolist() == [[1.5, 15.0]]


def test_each_rank_keeps_its_buffers():
    run_ranks(buffers, 2)
