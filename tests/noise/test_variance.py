# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import math

import numpy as np
import pytest

from mmdet_megdet.noise import averaged, dissimilarity, module_factors


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


def test_factors_against_the_published_rule():
    """``sqrt(clip(phi_0 / phi_i))``, averaged from 1 on."""
    noise = dict(neck=20.0, backbone=300.0, head=900.0)
    phi = {n: 1 - 1 / (1 + v / 128) for n, v in noise.items()}
    found = module_factors(noise, 256, 'backbone', 10.0)
    for name in noise:
        expected = math.sqrt(phi['backbone'] / phi[name])
        assert found[name] == pytest.approx(expected, rel=1e-12)
    assert found['backbone'] == 1.0
    once = averaged({}, found, 0.97)
    twice = averaged(once, found, 0.97)
    for name, factor in found.items():
        assert twice[name] == pytest.approx(
            0.97**2 + (1 - 0.97**2) * factor, rel=1e-12
        )


@pytest.mark.parametrize(
    ('noise', 'factor'),
    [(1e-9, 3.0), (0.0, 3.0), (math.inf, 0.5), (math.nan, 1.0)],
)
def test_factors_have_limits(noise, factor):
    parts = dict(backbone=1.0, head=noise)
    largest = 3.0 if factor >= 1 else 2.0
    found = module_factors(parts, 256, 'backbone', largest)
    assert found == dict(backbone=1.0, head=factor)


def test_without_the_anchors_noise_all_stay():
    noise = dict(backbone=math.nan, head=3.0)
    assert set(module_factors(noise, 8, 'backbone', 3.0).values()) == {1.0}
