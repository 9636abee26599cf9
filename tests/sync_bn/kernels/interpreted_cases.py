# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Tests of Triton's interpreter alone, which test_interpreted.py runs."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn import MegDetSyncBN, kernels
from mmdet_megdet.sync_bn.kernels import check, fused, plain
from tests.distributed.parity import Case, parity
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import run_threads
from tests.sync_bn.kernels.mutations import MUTATIONS, mutated


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


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


@pytest.mark.parametrize('ranks', CASES)
def test_small_parity(ranks):
    for case in CASES[ranks]:
        for errors in run_threads(parity, ranks, case):
            assert all(error <= 1 for error in errors.values()), errors


def mixed_implementations(rank, world_size, cases):
    """Rank 1 goes without Triton."""
    os.environ['MEGDET_BN_KERNELS'] = ('triton', 'plain')[rank]
    chosen = kernels.choose(torch.empty(0), None)
    return chosen is plain, [parity(rank, world_size, case) for case in cases]


def test_ranks_may_differ_in_implementation():
    cases = [CASES[2][0], Case((1, 2), (5,), dtype=torch.float16)]
    results = run_ranks(mixed_implementations, 2, cases)
    assert [is_plain for is_plain, _ in results] == [False, True]
    for _, errors_of_cases in results:
        for errors in errors_of_cases:
            assert all(error <= 1 for error in errors.values()), errors


def odd_gradients(rank, world_size):
    """Expanded, of another layout than the input, and at an odd address."""
    results = []
    x = torch.randn(2, 3, 4, 5)
    for layout in (torch.contiguous_format, torch.channels_last):
        gradients = (
            torch.tensor(2.0).expand(2, 3, 4, 5),
            torch.randn(2, 3, 4, 5).contiguous(memory_format=layout),
            torch.randn(121)[1:].view(2, 3, 4, 5),
        )
        for dy in gradients:
            found = []
            for asked in ('triton', 'plain'):
                os.environ['MEGDET_BN_KERNELS'] = asked
                leaf = x.clone().requires_grad_()
                MegDetSyncBN(3)(leaf).backward(dy)
                found.append(leaf.grad)
            results.append((found[0] - found[1]).abs().max().item())
        x = channels_last(x)
    return max(results)


@pytest.mark.slow
def test_gradients_of_any_layout():
    assert max(run_ranks(odd_gradients, 2)) < 1e-6


@pytest.mark.slow
@settings(max_examples=20)
@given(
    shape=st.sampled_from(
        [(1, 1), (5, 3), (2, 3, 37), (1, 2, 9, 5), (3, 7, 4, 4)]
    ),
    programs=st.sampled_from([1, 5, 1000]),
    most=st.sampled_from([1, 3]),
)
def test_every_position_is_in_one_chunk(shape, programs, most):
    """Sums of ones, however the tensor is cut up."""
    x = torch.ones(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, 'PROGRAMS', programs)
        patch.setattr(fused, 'MOST_TILES', most)
        sums, _ = fused.local_sums(x)
    count = x.numel() / shape[1]
    assert sums.tolist() == [count] * (2 * shape[1] + 1)


@pytest.mark.slow
@pytest.mark.parametrize('name', MUTATIONS)
def test_a_wrong_formula_is_noticed(name, monkeypatch, tmp_path):
    """By parity on two ranks, and by the self-check that users run."""
    monkeypatch.setattr(fused, 'kernels', mutated(name, tmp_path))
    assert check.find_fault(CPU, torch.float32, torch.float32, SMALL)
    assert any(map(is_beyond_its_bound, TELLING))


def is_beyond_its_bound(case):
    by_rank = run_threads(parity, 2, case)
    return not all(error <= 1 for found in by_rank for error in found.values())
