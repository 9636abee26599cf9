# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""AGVM's factors: learning rates by how noisy each part's gradient is.

After 'Large-batch Optimization for Dense Visual Predictions' (Xue et al.,
NeurIPS 2022), which takes two halves of a batch for the noise. Numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def dissimilarity(noise: float, batch: int) -> float:
    """Return what ``1 - cos`` is to be between a batch's two halves.

    Args:
        noise (float): The noise scale, in images.
        batch (int): Images of the whole batch.
    """
    return 1.0 if math.isinf(noise) else noise / (noise + batch / 2)


def module_factors(
    noise: Mapping[str, float], batch: int, anchor: str, largest: float
) -> dict[str, float]:
    """Return each part's factor, the root of the anchor's share of its noise.

    The quieter a part's gradient, the larger the factor; the anchor's is 1.

    Args:
        noise (Mapping[str, float]): Noise scales by part. A part of which it
            is not known (NaN) keeps its learning rate.
        batch (int): Images of an update.
        anchor (str): The part that keeps its learning rate.
        largest (float): What a factor, or its inverse, is at most.
    """
    first = dissimilarity(noise[anchor], batch)
    factors = {}
    for name, scale in noise.items():
        own = dissimilarity(scale, batch)
        if own == first or math.isnan(own) or math.isnan(first):
            factors[name] = 1.0
        else:
            ratio = math.sqrt(first / own) if own else math.inf
            factors[name] = min(max(ratio, 1 / largest), largest)
    return factors


def averaged(
    before: Mapping[str, float], now: Mapping[str, float], momentum: float
) -> dict[str, float]:
    """Return the running averages of factors, which begin at 1."""
    return {
        name: momentum * before.get(name, 1.0) + (1 - momentum) * factor
        for name, factor in now.items()
    }
