# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The gradient noise scale from squared norms; numbers only.

``|G|^2`` is the squared norm of the gradient that all the data would give,
``S`` the trace of the covariance of one image's gradient, and their ratio the
noise scale: the batch at which noise and gradient are equally large.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

# A measurement whose weight has fallen below this is forgotten.
_FORGOTTEN = 0.01
_CONFIDENCE = 0.95
_BLOCKS = 10


class Moments(NamedTuple):
    """Unbiased estimates from one update; each may be negative by chance."""

    g2: float  # of |G|^2
    s: float  # of S


class NoiseScale(NamedTuple):
    """A noise scale, in images, and the interval that holds it with 95 %.

    Infinite where no gradient shows above the noise, as the upper end is;
    NaN where there is neither.
    """

    value: float
    low: float
    high: float
    measurements: int

    def __str__(self) -> str:
        return f'{self.value:.3g} ({self.low:.3g} to {self.high:.3g})'


def from_parts(
    squares: float, parts: int, whole: float, images: int
) -> Moments:
    """Return the moments of an update of two or more independent parts.

    ``squares`` is the sum of the squared norms of the parts' gradients,
    ``whole`` that of the update's, which is their mean. ``g2`` is the mean
    over all pairs of parts of the product of their gradients.
    """
    g2 = (parts**2 * whole - squares) / (parts * (parts - 1))
    return Moments(g2, images * (whole - g2))


def noise_scale(
    g2: Sequence[float],
    s: Sequence[float],
    weights: Sequence[float] | np.ndarray | None = None,
) -> NoiseScale:
    """Return the noise scale of measurements that follow each other.

    It is the ratio of their averages, and only that is kept from being
    negative: a mean of ratios would be biased. The interval is Fieller's for
    a ratio, with the variances of both averages by the jackknife over blocks
    of neighbours. Without weights all measurements count alike.
    """
    values = np.array([g2, s], np.float64)
    count = values.shape[1]
    if not count:
        return NoiseScale(math.nan, 0.0, math.inf, 0)
    each = np.ones(count) if weights is None else np.array(weights)
    mean_g2, mean_s = values @ each / each.sum()
    low, high = 0.0, math.inf
    if count > 1:
        low, high = _fieller(mean_g2, mean_s, *_jackknife(values, each))
    return NoiseScale(_ratio(mean_g2, mean_s), low, high, count)


def _ratio(g2: float, s: float) -> float:
    if g2 > 0:
        return float(max(s, 0.0) / g2)
    return math.nan if g2 == s == 0 else math.inf


def _jackknife(
    values: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, int]:
    """The means' covariances, and the number of blocks."""
    middles = (weights.cumsum() - weights / 2) / weights.sum()
    places = (middles * min(_BLOCKS, values.shape[1])).astype(int)
    # A measurement that weighs more than a block leaves its neighbours empty.
    kept = [places != place for place in np.unique(places)]
    without = np.array(
        [
            values[:, keep] @ weights[keep] / weights[keep].sum()
            for keep in kept
        ]
    )
    off = without - without.mean(0)
    return off.T @ off * (len(kept) - 1) / len(kept), len(kept)


def _fieller(
    g2: float, s: float, covariances: np.ndarray, blocks: int
) -> tuple[float, float]:
    """The ratios at which ``s - ratio * g2`` is not significantly off 0."""
    t = stdtrit(blocks - 1, (1 + _CONFIDENCE) / 2)
    (var_g2, cov), (_, var_s) = covariances * t**2
    # They solve a x^2 - 2 b x + c <= 0.
    a, b, c = g2**2 - var_g2, g2 * s - cov, s**2 - var_s
    if a > 0 and g2 > 0:
        spread = math.sqrt(max(b * b - a * c, 0.0))
        low, high = (b - spread) / a, (b + spread) / a
        return max(low, 0.0), max(high, 0.0)
    if a < 0 and b * b > a * c:
        # All but what lies between the roots.
        spread = math.sqrt(b * b - a * c)
        first, last = (b + spread) / a, (b - spread) / a
        return (max(last, 0.0) if first <= 0 else 0.0), math.inf
    return 0.0, math.inf


class RunningNoise:
    """Noise scales of a model's parts over the latest measurements.

    A measurement weighs ``decay`` (above 0 and below 1) times the one after
    it, and is forgotten when that has come to a hundredth.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._measured: deque[dict[str, Moments]] = deque(
            maxlen=math.ceil(math.log(_FORGOTTEN) / math.log(decay))
        )

    def add(self, parts: Mapping[str, Moments]) -> None:
        """Add a measurement of all parts."""
        if self._measured and self._measured[-1].keys() != parts.keys():
            # Another model: nothing to average with.
            self._measured.clear()
        self._measured.append(dict(parts))

    def scales(self) -> dict[str, NoiseScale]:
        """Return the noise scale of each part."""
        if not self._measured:
            return {}
        weights = self.decay ** np.arange(len(self._measured))[::-1]
        return {
            name: noise_scale(
                [parts[name].g2 for parts in self._measured],
                [parts[name].s for parts in self._measured],
                weights=weights,
            )
            for name in self._measured[-1]
        }

    def state_dict(self) -> list[dict[str, list[float]]]:
        """Return the measurements, as plain numbers."""
        return [
            {name: [*moments] for name, moments in parts.items()}
            for parts in self._measured
        ]

    def load_state_dict(self, state: list[dict[str, list[float]]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self._measured.clear()
        self._measured.extend(
            {name: Moments(*moments) for name, moments in parts.items()}
            for parts in state
        )
