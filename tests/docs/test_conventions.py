# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The formulas of `docs/conventions.md`, against the layer itself."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.threads import run_threads

# Row of the page: momentum and eps as that framework writes them by default,
# whether its running variance is unbiased, and the momentum to write here.
CONVENTIONS = {
    'Keras 2': (0.99, 1e-3, True, 0.01),
    'Keras 3': (0.99, 1e-3, False, 0.01),
    'MXNet operator': (0.9, 1e-3, False, 0.1),
}


def batches() -> list[Tensor]:
    """Forty of eight values in three channels, float64."""
    generator = torch.Generator().manual_seed(0)
    return [
        3 + 2 * torch.randn(8, 3, generator=generator).double()
        for _ in range(40)
    ]


def train(rank, world_size, momentum, eps):
    """Outputs and buffers of a layer that sees this rank's part of each."""
    norm = MegDetSyncBN(3, eps, momentum).double()
    outputs = [norm(x.chunk(world_size)[rank]).detach() for x in batches()]
    return outputs, norm.running_mean, norm.running_var


@pytest.mark.parametrize('name', CONVENTIONS)
def test_a_translated_layer_keeps_the_same_statistics(name):
    """`new = m * old + (1 - m) * batch`, as TensorFlow and MXNet write it."""
    momentum, eps, unbiased, ours = CONVENTIONS[name]
    ranks = run_threads(train, 2, ours, eps)
    mean, var = torch.zeros(3).double(), torch.ones(3).double()
    for step, x in enumerate(batches()):
        centred = x - x.mean(0)
        normalised = centred / (x.var(0, unbiased=False) + eps).sqrt()
        output = torch.cat([outputs[step] for outputs, *_ in ranks])
        # A few roundings of float64.
        torch.testing.assert_close(output, normalised, rtol=0, atol=1e-12)
        mean = momentum * mean + (1 - momentum) * x.mean(0)
        kept = x.var(0, unbiased=unbiased)
        var = momentum * var + (1 - momentum) * kept
    # What the variance's start at 1 has left.
    start = momentum ** len(batches())
    for _, running_mean, running_var in ranks:
        torch.testing.assert_close(running_mean, mean, rtol=1e-12, atol=0)
        # Of n = 8 values the biased one is (n - 1) / n of the unbiased.
        factor = 1 if unbiased else 7 / 8
        torch.testing.assert_close(
            (running_var - start) * factor, var - start, rtol=1e-10, atol=0
        )


def test_a_momentum_copied_untranslated_forgets_at_once():
    """After one batch 0.99 of the buffer is that batch."""
    norm = MegDetSyncBN(3, momentum=0.99).double()
    x = batches()[0]
    norm(x)
    torch.testing.assert_close(norm.running_mean, 0.99 * x.mean(0))


@pytest.mark.parametrize('name', CONVENTIONS)
def test_the_pages_row(name, root):
    page = (root / 'docs' / 'conventions.md').read_text()
    (row,) = re.findall(rf'^\| {name} .*$', page, re.MULTILINE)
    momentum, eps, unbiased, ours = CONVENTIONS[name]
    _, _, defaults, variance, write, _ = map(str.strip, row.split('|'))
    assert defaults.replace('epsilon', 'eps') == (
        f'momentum {momentum}, eps 1e-3'
    )
    assert eps == 1e-3
    assert variance == ('unbiased' if unbiased else 'biased')
    assert write == f'`momentum={ours}, eps=1e-3`'
