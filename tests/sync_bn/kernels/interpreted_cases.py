# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Tests of Triton's interpreter alone, which test_interpreted.py runs."""

import importlib.util
import os
from itertools import chain
from pathlib import Path

import pytest
import torch

from mmdet_megdet.sync_bn import kernels
from mmdet_megdet.sync_bn.kernels import check, fused, plain, triton_kernels
from tests.distributed.parity import Case, channels_last, parity_of_cases
from tests.distributed.ranks import run_ranks, run_threads

CPU = torch.device('cpu')
SMALL = [check.Case((2, 3, 37), momentum=None), check.Case((2, 5, 3, 4))]
TELLING = [
    Case((3, 2), (19,), 1000.0),
    Case((2, 1), (3, 3), layer=dict(momentum=None), layout=channels_last),
]
UNEVEN = Case((1, 0, 2), (4, 2), 30.0, layer=dict(affine=False))

# What is replaced by what, for a formula that is wrong; each old text stands
# in the source once.
MUTATIONS = {
    # Moments of chunks.
    'second += s + (f + moved) * e': 'second += s',
    'moved = f + n * e': 'moved = f',
    'n = tl.minimum(extent - p % chunks * span, span).to(tl.float64)': (
        'n = (p * 0 + span).to(tl.float64)'
    ),
    'tl.sum(second, 0) - moved * moved / n': 'tl.sum(second, 0)',
    'd = tl.where(inside, v - centre, 0.0)\n        first += d': (
        'd = v - centre\n        first += d'
    ),
    'step in range(1, tiles)': 'step in range(2, tiles)',
    'return line // channels * chunks + chunk': 'return chunk',
    # The output and running statistics.
    'square - mean * mean': 'square',
    '-rest * scale': '0.0 * scale',
    'tl.sqrt(var + eps + eps_rest)': '(tl.sqrt(var) + eps)',
    'var * (n / tl.maximum(n - 1.0, 1.0))': 'var',
    '(seen + 1)': '(seen + 2)',
    # Gradients.
    '- rest * a': '+ 1000.0 * rest * a',
    '(b * invstd)': '(b * invstd * invstd)',
    'slope = invstd * invstd': 'slope = invstd',
    'a * share - rest * slope': '-rest * slope',
    '(g - d * slope - shift)': '(g - shift)',
    '(g - d * slope - shift) * scale': '(g - d * slope - shift)',
}


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_the_self_check_passes(dtype):
    assert check.find_fault(CPU, dtype, torch.float32, SMALL) is None


def within_bounds(*cases, ranks=parity_of_cases, run=run_threads):
    found = run(ranks, len(cases[0].shares), cases)
    return all(e <= 1 for each in chain(*found) for e in each.values())


def test_small_parity():
    assert within_bounds(*TELLING)
    assert within_bounds(UNEVEN)


def mixed_implementations(rank, world_size, cases):
    """Rank 1 goes without Triton."""
    os.environ['MEGDET_BN_KERNELS'] = ('triton', 'plain')[rank]
    assert kernels.choose(torch.empty(0), None) is (fused, plain)[rank]
    return parity_of_cases(rank, world_size, cases)


def test_ranks_may_differ_in_implementation():
    half = Case((1, 2), (5,), dtype=torch.float16)
    cases = TELLING[0], half
    assert within_bounds(*cases, ranks=mixed_implementations, run=run_ranks)


@pytest.mark.slow
@pytest.mark.parametrize('old', MUTATIONS)
def test_a_wrong_formula_is_noticed(old, monkeypatch, tmp_path):
    """By parity on two ranks, and by the self-check that users run."""
    source = Path(triton_kernels.__file__).read_text()
    assert source.count(old) == 1
    path = tmp_path / 'mutated_kernels.py'
    path.write_text(source.replace(old, MUTATIONS[old]))
    spec = importlib.util.spec_from_file_location('mutated_kernels', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(fused, 'kernels', module)
    assert check.find_fault(CPU, torch.float32, torch.float32, SMALL)
    assert not within_bounds(*TELLING)
