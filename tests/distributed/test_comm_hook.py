# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Communication hooks by name: our defaults, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import MegDetDistributedDataParallel
from tests.distributed.ranks import run_ranks

ROWS, COLUMNS = 16, 24


class Sum(nn.Module):
    """Its gradient is what it is called with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def reduced(rank, world_size, comm_hook, gradients):
    """What DDP makes of the gradients of one step after the other."""
    model = MegDetDistributedDataParallel(Sum(), comm_hook=comm_hook)
    found = []
    for gradient in gradients:
        model.zero_grad()
        model(gradient).backward()
        found.append(model.module.weight.grad)
    return found


@pytest.mark.parametrize(
    ('name', 'dtype'),
    [('fp16_compress', torch.float16), ('bf16_compress', torch.bfloat16)],
)
def test_half_precision(name, dtype):
    gradient = 2 + torch.rand(ROWS, COLUMNS)
    for (found,) in run_ranks(reduced, 2, name, gradient[None]):
        # Halves of what was rounded once, and their sum, are exact.
        assert torch.equal(found, gradient.to(dtype).float())


@pytest.mark.parametrize('rank', [1, 3])
def test_power_sgd_survives_gradients_of_zeros(rank):
    """PyTorch's own defaults make them NaN, or zero for ever."""
    gradients = torch.zeros(4, ROWS, COLUMNS)
    generator = torch.Generator().manual_seed(0)
    gradients[3] = torch.randn(ROWS, COLUMNS, generator=generator)
    options = dict(
        type='powerSGD', matrix_approximation_rank=rank, start_powerSGD_iter=2
    )
    *zeros, last = run_ranks(reduced, 2, options, gradients)[0]
    assert all((gradient == 0).all() for gradient in zeros)
    # A projection of the gradient on as many directions.
    assert torch.linalg.matrix_rank(last, rtol=1e-5) == rank
    assert (last - gradients[3]).norm() < gradients[3].norm()


REFUSED = [
    ('fp8', 'fp16_compress, bf16_compress, powerSGD'),
    (dict(matrix_approximation_rank=2), 'names no communication hook'),
    (dict(type='fp16_compress', rank=2), 'fp16_compress has no arguments'),
    (dict(type='powerSGD', rank=2), 'unexpected keyword argument .rank'),
    (dict(type='powerSGD', start_powerSGD_iter=1), 'powerSGD.* > 1'),
]


def refusals(rank, world_size):
    for comm_hook, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            MegDetDistributedDataParallel(Sum(), comm_hook=comm_hook)


def test_refusals():
    run_ranks(refusals, 1)
