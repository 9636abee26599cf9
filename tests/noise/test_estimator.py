# Copyright (c) mmdet_megdet contributors. All rights reserved.
import math

import numpy as np
import pytest

from mmdet_megdet.noise import Moments, RunningNoise, from_parts, noise_scale


def simulate(rng, updates, noise, batch=32, parts=8, size=300):
    """Measurements of a gradient of length 1 in noise of a known size."""
    deviation = math.sqrt(noise / size / (batch // parts))
    drawn = rng.standard_normal((updates, parts, size)) * deviation
    gradients = drawn + 1 / math.sqrt(size)
    squares = (gradients**2).sum((1, 2))
    wholes = (gradients.mean(1) ** 2).sum(-1)
    return from_parts(squares, parts, wholes, batch)


def test_a_ratio_of_averages_clamped_only_afterwards():
    g2, s = [4.0, -1.0, 0.0], [-2.0, 10.0, 1.0]
    assert noise_scale(g2, s).value == 3.0
    assert noise_scale([1.0, 1.0], [-3.0, 1.0]).value == 0.0
    assert noise_scale([1.0, -2.0], [3.0, 1.0]).value == math.inf
    assert math.isnan(noise_scale([0.0], [0.0]).value)
    assert math.isnan(noise_scale([], []).value)
    weighted = noise_scale(g2, s, weights=[1, 2, 5])
    assert weighted.value == pytest.approx((-2 + 20 + 5) / (4 - 2))


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for updates, noise, open_above in ((10, 64, 0), (10, 512, 0.3)):
        found = [
            noise_scale(*simulate(rng, updates, noise)) for _ in range(200)
        ]
        held = np.mean([f.low <= noise <= f.high for f in found])
        assert 0.9 < held < 0.985
        # Where the gradient does not show, it says so.
        assert np.mean([math.isinf(f.high) for f in found]) >= open_above


def test_measurements_of_no_weight_are_forgotten():
    """Their average is in tests/hooks/test_gradient_noise.py."""
    running = RunningNoise(decay=0.8)
    for _ in range(30):
        running.add(dict(head=Moments(1.0, 2.0)))
    # 0.8^20 is above a hundredth, 0.8^21 is not.
    assert len(running.state_dict()) == 21
    running.add(dict(another=Moments(1.0, 2.0)))
    assert running.scales() == dict(another=(2.0, 0.0, math.inf, 1))
