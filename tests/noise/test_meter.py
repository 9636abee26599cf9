# Copyright (c) mmdet_megdet contributors. All rights reserved.
from statistics import fmean, stdev

import torch
from torch import nn

from mmdet_megdet.noise import Sketch


def test_the_square_of_a_sketch_over_signs():
    """Without bias, and as far off as is said.

    Of gradients that are all positive: without signs they would add up.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [(64, 3, 7, 7), (64,), (40, 1021)]
    grads = [torch.rand(size, generator=generator) for size in sizes]
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    right = sum(g.double().square().sum().item() for g in grads)
    off = []
    for seed in range(150):
        sketch = Sketch(parameters, 1, seed)
        for parameter, grad in zip(parameters, grads, strict=True):
            sketch.add(0, parameter, grad)
        off.append(sketch.values.square().sum().item() / right - 1)
    deviation = (2 / 1021) ** 0.5
    assert stdev(off) < 1.2 * deviation
    assert abs(fmean(off)) < 3 * deviation / 150**0.5
