# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Tests of Triton's interpreter alone, which test_interpreted.py runs."""

from __future__ import annotations

import os

import pytest
import torch

from mmdet_megdet.sync_bn import kernels
from mmdet_megdet.sync_bn.kernels import check, fused, plain
from tests.distributed.parity import (
    Case,
    channels_last,
    parity,
    parity_of_cases,
)
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import run_threads
from tests.sync_bn.kernels.mutations import MUTATIONS, mutated

CPU = torch.device('cpu')
SMALL = [
    check.Case((2, 3, 37), momentum=None),
    check.Case((2, 5, 3, 4)),
]
CASES = {
    2: [
        Case((2, 1), (2, 9), 1000.0),
        Case((3, 0), (4, 2), 30.0, layout=channels_last),
    ],
    3: [Case((1, 0, 2), (11,), layer=dict(momentum=None, affine=False))],
}
TELLING = [
    Case((3, 2), (19,), 1000.0),
    Case((2, 1), (3, 3), layer=dict(momentum=None), layout=channels_last),
]


def test_the_interpreter_serves_tensors_on_the_cpu():
    assert kernels.choose(torch.empty(0), None) is fused


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_the_self_check_passes(dtype):
    assert check.find_fault(CPU, dtype, torch.float32, SMALL) is None


def within_bounds(ranks, case):
    errors = [
        e for of in run_threads(parity, ranks, case) for e in of.values()
    ]
    return all(error <= 1 for error in errors)


@pytest.mark.parametrize('ranks', CASES)
def test_small_parity(ranks):
    assert all(within_bounds(ranks, case) for case in CASES[ranks])


def mixed_implementations(rank, world_size, cases):
    """Rank 1 goes without Triton."""
    os.environ['MEGDET_BN_KERNELS'] = ('triton', 'plain')[rank]
    chosen = kernels.choose(torch.empty(0), None)
    return chosen is plain, parity_of_cases(rank, world_size, cases)


def test_ranks_may_differ_in_implementation():
    cases = [CASES[2][0], Case((1, 2), (5,), dtype=torch.float16)]
    results = run_ranks(mixed_implementations, 2, cases)
    assert [is_plain for is_plain, _ in results] == [False, True]
    for _, errors_of_cases in results:
        for errors in errors_of_cases:
            assert all(error <= 1 for error in errors.values()), errors


@pytest.mark.parametrize('layout', [torch.clone, channels_last])
def test_gradients_of_any_layout_are_laid_out_as_the_input(layout):
    """Expanded, of another layout, and at an odd address."""
    x = layout(torch.randn(2, 3, 4, 5))
    for dy in (
        torch.tensor(2.0).expand(2, 3, 4, 5),
        torch.randn(2, 5, 4, 3).transpose(1, 3),
        torch.randn(121)[1:].view(2, 3, 4, 5),
    ):
        prepared = fused.prepare(dy, x)
        assert prepared.stride() == x.stride()
        assert prepared.data_ptr() % fused.ALIGNMENT == 0
        assert torch.equal(prepared, dy)


@pytest.mark.slow
@pytest.mark.parametrize('name', MUTATIONS)
def test_a_wrong_formula_is_noticed(name, monkeypatch, tmp_path):
    """By parity on two ranks, and by the self-check that users run."""
    monkeypatch.setattr(fused, 'kernels', mutated(name, tmp_path))
    assert check.find_fault(CPU, torch.float32, torch.float32, SMALL)
    assert not all(within_bounds(2, case) for case in TELLING)
