# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The rules, by values that can be had by hand, and the published fit."""

import math
import re
from math import inf

import numpy as np
import pytest

from mmdet_megdet.noise import (
    epochs_factor,
    module_factors,
    noise_limited_lr,
)
from mmdet_megdet.noise.advice import dissimilarity


def test_rules_at_their_ends():
    """Between them they are in tests/tools/test_noise_scale.py."""
    assert epochs_factor(100, inf) == 1
    # Linear below the noise, constant above.
    for noise, lr in ((inf, 0.2), (1e9, 0.2), (100, 0.15), (1e-9, 0.1)):
        found = noise_limited_lr(0.1, 50, 100, noise)
        assert found == pytest.approx(lr)


def fit(batches, epochs):
    """Of ``epochs = least (1 + batch / critical)``: critical and least."""
    slope, least = np.polyfit(batches, epochs, 1)
    return least / slope, least


def test_the_fit_of_mlperfs_tables(root):
    def published(heading):
        """Batches and epochs of a table."""
        page = (root / 'docs' / 'which_batch.md').read_text()
        section = page.split(f'### {heading}')[1].split('\n##')[0]
        rows = re.findall(r'^\| (\d+) .*\| ([\d.]+) \|$', section, re.M)
        return np.array(rows, float).T

    table = published('Mask R-CNN on COCO, MLPerf')
    critical, least = fit(*table)
    assert critical == pytest.approx(827.5, abs=0.1)
    assert least == pytest.approx(12.86, abs=0.01)
    without_one = [
        fit(*np.delete(table, row, 1))[0] for row in range(table.shape[1])
    ]
    assert min(without_one) == pytest.approx(767, abs=0.5)
    assert max(without_one) == pytest.approx(885, abs=0.5)
    # What the page derives from it.
    for batch, took in ((256, 16.8), (512, 20.8), (16, 13.1)):
        told = least * epochs_factor(batch, critical)
        assert told == pytest.approx(took, abs=0.05)
    for batch, lr in ((256, 0.249), (512, 0.403)):
        told = noise_limited_lr(0.02, 16, batch, 830)
        assert told == pytest.approx(lr, abs=5e-4)
    critical, _ = fit(*published('RetinaNet on OpenImages, MLPerf'))
    assert critical == pytest.approx(1978, abs=1)


@pytest.mark.parametrize('noise', [16, 128, 1024])
def test_the_cosine_between_halves(noise):
    """Against halves of a batch of 64 that are drawn."""
    rng = np.random.default_rng(0)
    size = 2000
    halves = 1 / math.sqrt(size) + rng.standard_normal(
        (2, 200, size)
    ) * math.sqrt(noise / 32 / size)
    products = (halves[0] * halves[1]).sum(-1)
    norms = np.linalg.norm(halves, axis=-1).prod(0)
    drawn = 1 - np.mean(products / norms)
    assert dissimilarity(noise, 64) == pytest.approx(drawn, abs=5e-3)


@pytest.mark.parametrize(
    ('noise', 'factor'),
    [(1e-9, 3.0), (0.0, 3.0), (math.inf, 0.5), (math.nan, 1.0)],
)
def test_factors_have_limits(noise, factor):
    parts = dict(backbone=1.0, head=noise)
    largest = 3.0 if factor >= 1 else 2.0
    found = module_factors(parts, 256, 'backbone', largest)
    assert found == dict(backbone=1.0, head=factor)
    # Without the anchor's noise all stay.
    parts = dict(backbone=math.nan, head=noise)
    found = module_factors(parts, 256, 'backbone', largest)
    assert found == dict(backbone=1.0, head=1.0)
