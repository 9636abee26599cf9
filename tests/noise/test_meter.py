# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
import torch
from torch import nn

from mmdet_megdet.noise import Sketch


def gradients(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in sizes]


def square(parameters, grads, seed):
    sketch = Sketch(parameters, 1, seed)
    for parameter, grad in zip(parameters, grads, strict=True):
        sketch.add(0, parameter, grad)
    return sketch.values.square().sum().item()


def test_short_ones_are_exact_and_all_add_up():
    parameters = [nn.Parameter(torch.zeros(s)) for s in ((20, 40), (221,))]
    ours, theirs = (gradients([(20, 40), (221,)], seed) for seed in (0, 1))
    ranks = [Sketch(parameters, 2, seed=7) for _ in range(2)]
    for sketch, grads in zip(ranks, (ours, theirs), strict=True):
        # Whatever comes first, on whichever rank.
        for i in (0, 1) if sketch is ranks[0] else (1, 0):
            sketch.add(1, parameters[i], grads[i])
    added = ranks[0].values + ranks[1].values
    whole = [a + b for a, b in zip(ours, theirs, strict=True)]
    right = sum(w.double().square().sum().item() for w in whole)
    assert added[1].square().sum().item() == pytest.approx(right, 1e-6)
    assert not added[0].any()


def test_the_square_over_signs():
    """Without bias, and as far off as is said."""
    sizes = [(64, 3, 7, 7), (64,), (40, 1021)]
    parameters = [nn.Parameter(torch.zeros(s)) for s in sizes]
    grads = gradients(sizes, 0)
    right = sum(g.double().square().sum().item() for g in grads)
    off = [square(parameters, grads, seed) / right - 1 for seed in range(150)]
    off = torch.tensor(off)
    deviation = (2 / 1021) ** 0.5
    assert off.std() < 1.2 * deviation
    assert abs(off.mean()) < 3 * deviation / 150**0.5
