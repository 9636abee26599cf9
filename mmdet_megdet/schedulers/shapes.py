# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The shapes of a warm-up: pure functions from progress to value.

All take and return exact fractions, so that the one rounding to a float is
the caller's. ``start`` and ``end`` are the values at the two ends, and
``progress`` is the part of the warm-up that is done, in [0, 1].
"""

from __future__ import annotations

import math
from fractions import Fraction


def linear(start: Fraction, end: Fraction, progress: Fraction) -> Fraction:
    """``start + (end - start) * progress``, exactly."""
    return start + (end - start) * progress


def cosine(start: Fraction, end: Fraction, progress: Fraction) -> Fraction:
    """``start + (end - start) * (1 - cos(pi * progress)) / 2``.

    Within ``3 * 2**-53 * |end - start|``.
    """
    # (1 - cos(2 a)) / 2 = sin(a) ** 2, without the cancellation near 0.
    sine = math.sin(Fraction(math.pi) * progress / 2)
    return linear(start, end, Fraction(sine) ** 2)


def exponential(
    start: Fraction, end: Fraction, progress: Fraction
) -> Fraction:
    """``end * (start / end) ** (1 - progress)``; both ends must be > 0.

    Within ``3 * 2**-53`` of the larger end.
    """
    return end * Fraction(float(start / end) ** float(1 - progress))


def two_stage(
    start: Fraction, end: Fraction, progress: Fraction, held: Fraction
) -> Fraction:
    """``start`` up to the progress ``held`` < 1, then linear; exactly."""
    return linear(start, end, max(Fraction(0), (progress - held) / (1 - held)))
