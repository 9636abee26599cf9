# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The rules, by values that can be had by hand, and the published fit."""

import re
from math import inf

import pytest

from mmdet_megdet.noise.advice import (
    epochs_factor,
    fit_critical_batch,
    linear_lr,
    noise_limited_lr,
    square_root_lr,
)


@pytest.fixture
def published(root):
    """Batches and epochs of the page's tables, by the tables' headings."""
    page = (root / 'docs' / 'which_batch.md').read_text()

    def read(heading):
        section = page.split(f'### {heading}')[1].split('\n##')[0]
        rows = re.findall(r'^\| (\d+) \|(.+)\|$', section, re.MULTILINE)
        batches = [int(batch) for batch, _ in rows]
        return batches, [float(rest.split('|')[-1]) for _, rest in rows]

    return read


def test_a_batch_of_the_noise_scale_takes_twice_the_epochs():
    assert epochs_factor(100, 100) == 2
    assert epochs_factor(25, 100) == 1.25
    assert epochs_factor(100, inf) == 1


def test_the_learning_rate_is_linear_below_the_noise_and_constant_above():
    # (1 + 100/50) / (1 + 100/100) = 3/2
    assert noise_limited_lr(0.1, 50, 100, 100) == pytest.approx(0.15)
    assert noise_limited_lr(0.1, 50, 100, inf) == pytest.approx(0.2)
    assert noise_limited_lr(0.1, 50, 100, 1e9) == pytest.approx(0.2)
    assert noise_limited_lr(0.1, 50, 100, 1e-9) == pytest.approx(0.1)
    assert noise_limited_lr(0.1, 50, 50, 77) == pytest.approx(0.1)


def test_the_usual_rules():
    assert linear_lr(0.02, 16, 256) == pytest.approx(0.32)
    assert square_root_lr(0.02, 16, 256) == pytest.approx(0.08)


def test_the_fit_of_mlperfs_mask_rcnn(published):
    batches, epochs = published('Mask R-CNN on COCO, MLPerf')
    fit = fit_critical_batch(batches, epochs)
    assert fit.critical == pytest.approx(827.5, abs=0.1)
    assert fit.least == pytest.approx(12.86, abs=0.01)
    without_one = [
        fit_critical_batch(
            batches[:i] + batches[i + 1 :], epochs[:i] + epochs[i + 1 :]
        ).critical
        for i in range(len(batches))
    ]
    assert min(without_one) == pytest.approx(767, abs=0.5)
    assert max(without_one) == pytest.approx(885, abs=0.5)
    # What the page derives from it.
    assert fit.epochs(256) == pytest.approx(16.8, abs=0.05)
    assert fit.epochs(512) == pytest.approx(20.8, abs=0.05)
    assert fit.epochs(16) == pytest.approx(13.1, abs=0.05)
    assert noise_limited_lr(0.02, 16, 256, 830) == pytest.approx(
        0.249, abs=5e-4
    )
    assert noise_limited_lr(0.02, 16, 512, 830) == pytest.approx(
        0.403, abs=5e-4
    )


def test_the_fit_of_mlperfs_retinanet(published):
    fit = fit_critical_batch(*published('RetinaNet on OpenImages, MLPerf'))
    assert fit.critical == pytest.approx(1978, abs=1)


def test_no_fit_without_a_rise():
    with pytest.raises(ValueError, match='different batches'):
        fit_critical_batch([8, 8], [12, 13])
    with pytest.raises(ValueError, match='no critical batch'):
        fit_critical_batch([8, 16], [13, 12])
