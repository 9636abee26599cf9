# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Gradients through each communication hook, on two gloo ranks."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from mmdet_megdet.runtime import MegDetDistributedDataParallel
from tests.distributed.ranks import run_ranks

WORLD_SIZE = 2
ROWS, COLUMNS = 16, 24


class Sums(nn.Module):
    """Its gradient is what it is called with, as a matrix and a vector."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(ROWS, COLUMNS))
        self.vector = nn.Parameter(torch.zeros(5))

    def forward(self, matrix, vector):
        return (self.matrix * matrix).sum() + (self.vector * vector).sum()


def gradients(rank, world_size, comm_hook, matrices, vectors):
    """DDP's gradients, one pair for each of this rank's pairs."""
    model = MegDetDistributedDataParallel(Sums(), comm_hook=comm_hook)
    grads = []
    for matrix, vector in zip(matrices[rank], vectors[rank], strict=True):
        model.zero_grad()
        model(matrix, vector).backward()
        grads.append((model.module.matrix.grad, model.module.vector.grad))
    return grads


def draw(*shape):
    """Magnitudes from 1e-9, below what float16 holds, to 1e4."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.empty(shape).uniform_(-9, 4, generator=generator)
    return torch.randn(shape, generator=generator) * 10**exponents


@pytest.mark.parametrize(
    ('name', 'dtype'),
    [('fp16_compress', torch.float16), ('bf16_compress', torch.bfloat16)],
)
def test_half_precision(name, dtype):
    matrices = draw(WORLD_SIZE, 1, ROWS, COLUMNS)
    vectors = draw(WORLD_SIZE, 1, 5)
    results = run_ranks(gradients, WORLD_SIZE, name, matrices, vectors)
    # Each gradient is rounded once; its division by 2 is exact, or rounded
    # to a multiple of the smallest number; their sum is rounded once.
    unit, smallest = torch.finfo(dtype).eps / 2, torch.finfo(dtype).tiny
    smallest *= torch.finfo(dtype).eps
    for given, index in ((matrices, 0), (vectors, 1)):
        given = given[:, 0].double()
        true = given.mean(0)
        allowed = unit * (given.abs().mean(0) * (1 + unit) + true.abs())
        allowed += 2 * smallest
        error = (results[0][0][index].double() - true).abs()
        assert (error <= allowed).all()
        assert error.max() > 0.01 * allowed.max()  # it was compressed
        assert torch.equal(results[0][0][index], results[1][0][index])


RANK_1 = dict(
    type='powerSGD', matrix_approximation_rank=1, start_powerSGD_iter=2
)


@pytest.mark.parametrize('rank', [1, 3])
def test_power_sgd_survives_gradients_of_zeros(rank):
    """PyTorch's own defaults make them NaN, or zero for ever."""
    matrices = torch.zeros(WORLD_SIZE, 4, ROWS, COLUMNS)
    generator = torch.Generator().manual_seed(0)
    matrices[:, 3] = torch.randn(ROWS, COLUMNS, generator=generator)
    vectors = torch.zeros(WORLD_SIZE, 4, 5)
    options = dict(RANK_1, matrix_approximation_rank=rank)
    results = run_ranks(gradients, WORLD_SIZE, options, matrices, vectors)
    *zeros, last = (matrix for matrix, _ in results[0])
    assert all((matrix == 0).all() for matrix in zeros)
    # A projection of the gradient on as many directions.
    assert torch.linalg.matrix_rank(last, rtol=1e-5) == rank
    assert (last - matrices[0, 3]).norm() < matrices[0, 3].norm()


def refusal(rank, world_size, comm_hook):
    try:
        MegDetDistributedDataParallel(Sums(), comm_hook=comm_hook)
    except ValueError as error:
        return str(error)
    return 'accepted'


@pytest.mark.parametrize(
    ('comm_hook', 'message'),
    [
        ('fp8', 'fp16_compress, bf16_compress, powerSGD'),
        (dict(matrix_approximation_rank=2), 'names no communication hook'),
        (dict(type='fp16_compress', rank=2), 'fp16_compress has no arguments'),
        (dict(type='powerSGD', rank=2), 'unexpected keyword argument .rank'),
        (dict(type='powerSGD', start_powerSGD_iter=1), 'powerSGD.* > 1'),
    ],
    ids=str,
)
def test_refusals(comm_hook, message):
    (said,) = run_ranks(refusal, 1, comm_hook)
    assert re.search(message, said), said
