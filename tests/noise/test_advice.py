# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The published fit, and the ends of the rules.

Between them rules are in tests/tools/test_noise_scale.py and
tests/hooks/test_module_variance.py.
"""

import math
import re

import numpy as np
import pytest

from mmdet_megdet.noise import (
    epochs_factor,
    module_factors,
    noise_limited_lr,
)
from tests.tools.command import ROOT


def fit(batches, epochs):
    """Of ``epochs = least (1 + batch / critical)``: critical and least."""
    slope, least = np.polyfit(batches, epochs, 1)
    return least / slope, least


def test_the_fit_of_mlperfs_tables():
    def published(heading):
        """Batches and epochs of a table."""
        page = (ROOT / 'docs' / 'which_batch.md').read_text()
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


def test_noise_alone_sets_no_limit():
    assert noise_limited_lr(0.1, 50, 100, math.inf) == 0.2


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
