# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The four shapes, step by step, against their formulas in 60 digits."""

from fractions import Fraction

import mpmath
import pytest
from mmengine.registry import PARAM_SCHEDULERS

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.schedulers import (
    PreciseExponentialWarmup,
    PreciseTwoStageWarmup,
)
from tests.schedulers.steps import make_wrapper, train


def linear(start, end, x):
    return start + (end - start) * x


def cosine(start, end, x):
    return start + (end - start) * (1 - mpmath.cos(mpmath.pi * x)) / 2


def exponential(start, end, x):
    return end * (start / end) ** (1 - x)


def two_stage(start, end, x):
    """Held for the first quarter."""
    return linear(start, end, max(0, (4 * x - 1) / 3))


def assert_formula(value, formula, start, end, t, total):
    if not end:
        assert value == 0
        return
    # Cosine, the worst: 1.35 U of the sine's argument (pi as a float and one
    # rounding), which weigh at most 0.9, and 1.1 U of the sine itself, twice:
    # squared, less than 3 U (U = 2^-53). The value is rounded once: U.
    # Exponential: exponent 0.4 U, start / end U, power 1.1 U, value U.
    with mpmath.workdps(60):
        first = mpmath.mpf(start.numerator) / start.denominator
        wanted = formula(first, mpmath.mpf(end), mpmath.mpf(t) / total)
        largest = max(float(start), end)
        assert abs(mpmath.mpf(value) - wanted) <= largest * 2**-51
        # These are rounded once.
        if formula in (linear, two_stage):
            assert value == float(wanted)


@pytest.mark.parametrize(
    ('name', 'formula'),
    [
        ('PreciseLinearWarmup', linear),
        ('PreciseCosineWarmup', cosine),
        ('PreciseExponentialWarmup', exponential),
        ('PreciseTwoStageWarmup', two_stage),
    ],
)
@pytest.mark.parametrize('total', [4, 1000])
@pytest.mark.parametrize(
    'ends',
    [
        dict(start_factor=0.001),
        dict(start_factor=1 / 3),
        dict(start_factor=1.0),
        dict(start_value=0.05),  # from above and from below
        dict(start_value=0.0007, end_value=0.03),
    ],
    ids=str,
)
def test_every_step_is_the_closed_formula(name, formula, total, ends):
    # A value that no product gives back, and one that is frozen.
    bases = [0.1 / 3, 0.0] if 'end_value' in ends else [0.1 / 3, 0.08, 0.0]
    wrapper = make_wrapper(*bases)
    hold = dict(hold=total // 4) if formula is two_stage else {}
    cls = PARAM_SCHEDULERS.get(name)
    warmup = cls(wrapper, begin=3, end=3 + total, **ends, **hold)
    used = train(wrapper, [warmup], 3 + total + 3)

    assert used[:3] == [bases] * 3
    for base, values in zip(bases, zip(*used[3:], strict=True), strict=True):
        start = Fraction(ends.get('start_value', 0) if base else 0)
        start += Fraction(base) * Fraction(ends.get('start_factor', 0))
        end = ends.get('end_value', base) if base else 0.0
        assert values[0] == float(start)
        assert values[total:] == (end,) * 3
        for t in range(total):
            assert_formula(values[t], formula, start, end, t, total)


def test_two_stages_in_epochs():
    warmup = PreciseTwoStageWarmup.build_iter_from_epoch(
        make_wrapper(0.04), hold=1.5, end=2, epoch_length=29
    )
    assert (warmup.hold, warmup.end, warmup.count) == (44, 58, 'iters')


def test_what_a_shape_cannot_be():
    wrapper = make_wrapper(0.04)
    for hold in (0, 4, 2.0):
        with pytest.raises(ConfigError, match=f'hold={hold}'):
            PreciseTwoStageWarmup(wrapper, hold=hold, begin=1, end=5)
    for start in (dict(start_factor=0), dict(start_value=0)):
        with pytest.raises(ConfigError, match='leads away from 0'):
            PreciseExponentialWarmup(wrapper, end=4, **start)
