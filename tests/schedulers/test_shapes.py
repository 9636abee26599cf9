# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The four shapes, step by step, against their formulas in 60 digits."""

import pickle
from fractions import Fraction

import mpmath
import pytest
from mmengine.registry import PARAM_SCHEDULERS

from mmdet_megdet import schedulers
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.schedulers import (
    PreciseCosineWarmup,
    PreciseExponentialWarmup,
    PreciseLinearWarmup,
    PreciseTwoStageWarmup,
)
from tests.schedulers.steps import make_wrapper, train

BASES = [0.04, 0.1 / 3]
FACTOR = 0.001


def linear(start, end, x):
    return start + (end - start) * x


def cosine(start, end, x):
    return start + (end - start) * (1 - mpmath.cos(mpmath.pi * x)) / 2


def exponential(start, end, x):
    return end * (start / end) ** (1 - x)


def two_stage(start, end, x):
    """Held for the first quarter."""
    return linear(start, end, max(0, (4 * x - 1) / 3))


SHAPES = [
    (PreciseLinearWarmup, linear),
    (PreciseCosineWarmup, cosine),
    (PreciseExponentialWarmup, exponential),
    (PreciseTwoStageWarmup, two_stage),
]


def kwargs_for(cls, total):
    hold = dict(hold=total // 4) if cls is PreciseTwoStageWarmup else {}
    return hold | dict(begin=3, end=3 + total)


def assert_formula(value, formula, start, end, t, total):
    # Cosine, the worst: 1.35 U of the sine's argument (pi as a float and one
    # rounding), which weigh at most 0.9, and 1.1 U of the sine itself, twice:
    # squared, less than 3 U (U = 2^-53). The value is rounded once: U.
    # Exponential: exponent 0.4 U, start / end U, power 1.1 U, value U.
    with mpmath.workdps(60):
        end = mpmath.mpf(end)
        start = mpmath.mpf(start.numerator) / start.denominator
        wanted = formula(start, end, mpmath.mpf(t) / total)
        assert abs(mpmath.mpf(value) - wanted) <= end * 2**-51


@pytest.mark.parametrize(('cls', 'formula'), SHAPES)
@pytest.mark.parametrize('total', [8, 1000])
def test_every_step_is_the_closed_formula(cls, formula, total):
    wrapper = make_wrapper(*BASES)
    warmup = cls(wrapper, FACTOR, **kwargs_for(cls, total))
    used = train(wrapper, [warmup], 3 + total + 3)

    assert used[:3] == [BASES] * 3
    assert used[3] == [base * FACTOR for base in BASES]
    assert used[3 + total :] == [BASES] * 3
    for t in range(total):
        for base, value in zip(BASES, used[3 + t], strict=True):
            start = Fraction(base) * Fraction(FACTOR)
            assert_formula(value, formula, start, base, t, total)


@pytest.mark.parametrize(('cls', 'formula'), SHAPES)
@pytest.mark.parametrize('end_value', [None, 0.03])
def test_absolute_values(cls, formula, end_value):
    # Frozen at 0; the other's own value is one that no product gives back.
    wrapper = make_wrapper(0.1 / 3, 0.0)
    options = dict(start_value=0.0007, end_value=end_value)
    warmup = cls(wrapper, **options, **kwargs_for(cls, 8))
    used = train(wrapper, [warmup], 14)
    end = end_value or 0.1 / 3
    assert used[3] == [0.0007, 0.0]
    assert used[11:] == [[end, 0.0]] * 3
    for t in range(8):
        value, frozen = used[3 + t]
        assert frozen == 0
        assert_formula(value, formula, Fraction(0.0007), end, t, 8)


def test_two_stages():
    wrapper = make_wrapper(0.04)
    warmup = PreciseTwoStageWarmup(wrapper, 0.5, hold=2, end=4)
    used = train(wrapper, [warmup], 6)
    assert used == [[0.02]] * 3 + [[0.03], [0.04], [0.04]]
    for hold in (0, 4, 2.0):
        with pytest.raises(ConfigError, match=f'hold={hold}'):
            PreciseTwoStageWarmup(wrapper, hold=hold, begin=1, end=5)


def test_two_stages_in_epochs():
    warmup = PreciseTwoStageWarmup.build_iter_from_epoch(
        make_wrapper(0.04), hold=1.5, end=2, epoch_length=29
    )
    assert (warmup.hold, warmup.end, warmup.count) == (44, 58, 'iters')


def test_exponential_cannot_start_at_zero():
    for kwargs in (dict(start_factor=0), dict(start_value=0)):
        with pytest.raises(ConfigError, match='leads away from 0'):
            PreciseExponentialWarmup(make_wrapper(0.04), end=4, **kwargs)


@pytest.mark.parametrize(
    'name', [name for name in schedulers.__all__ if name[:7] == 'Precise']
)
def test_all_are_registered_and_can_be_pickled(name):
    kind = getattr(schedulers, name)
    assert PARAM_SCHEDULERS.get(name) is kind
    assert pickle.loads(pickle.dumps(kind)) is kind
