# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The batch and learning rate that follow from a gradient noise scale.

Pure arithmetic; batches and noise scales are in images. `docs/which_batch.md`
has the derivations, the sources and the limits of each rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isinf, isnan, sqrt


def epochs_factor(batch: float, noise_scale: float) -> float:
    """Return how many times the epochs of a very small batch are needed.

    McCandlish et al., 'An Empirical Model of Large-Batch Training', 2.11.
    """
    return 1 + batch / noise_scale


def noise_limited_lr(
    lr: float, lr_batch: float, batch: float, noise_scale: float
) -> float:
    """Return SGD's learning rate up to which the noise allows scaling.

    From a rate that is known to work with ``lr_batch`` images: the gain ratio
    of Johnson et al., 'AdaScale SGD', 2020. An upper bound: stability sets
    another limit.
    """
    if noise_scale == inf:
        return linear_lr(lr, lr_batch, batch)
    return lr * (1 + noise_scale / lr_batch) / (1 + noise_scale / batch)


def linear_lr(lr: float, lr_batch: float, batch: float) -> float:
    """Return the learning rate by the linear rule (SGD)."""
    return lr * batch / lr_batch


def square_root_lr(lr: float, lr_batch: float, batch: float) -> float:
    """Return the learning rate by the square-root rule (often for Adam)."""
    return lr * sqrt(batch / lr_batch)


def dissimilarity(noise: float, batch: int) -> float:
    """Return the mean ``1 - cos`` of the gradients of a batch's halves."""
    return 1.0 if isinf(noise) else noise / (noise + batch / 2)


def module_factors(
    noise: Mapping[str, float], batch: int, anchor: str, largest: float
) -> dict[str, float]:
    """Return AGVM's factor of the learning rate of each part of a model.

    ``sqrt(d / d_part)``, where ``d`` is the anchor's :func:`dissimilarity`
    with ``batch`` images an update; at most ``largest`` and at least its
    inverse. A part whose noise scale is not known (NaN) keeps its rate.

    Source: Xue et al., 'Large-batch Optimization for Dense Visual
    Predictions', 2022, which takes ``d`` from two halves of a batch.
    """
    first = dissimilarity(noise[anchor], batch)
    factors = {}
    for name, scale in noise.items():
        own = dissimilarity(scale, batch)
        if own == first or isnan(own) or isnan(first):
            factors[name] = 1.0
        else:
            ratio = sqrt(first / own) if own else inf
            factors[name] = min(max(ratio, 1 / largest), largest)
    return factors
