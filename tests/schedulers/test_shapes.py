# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The four shapes, step by step, against their formulas in 60 digits."""

from fractions import Fraction

import mpmath
import pytest
import torch
from mmengine.optim import BaseOptimWrapper, MultiStepLR, OptimWrapper
from mmengine.registry import PARAM_SCHEDULERS

from mmdet_megdet import schedulers
from mmdet_megdet.schedulers import (
    PreciseCosineWarmup,
    PreciseExponentialWarmup,
    PreciseExponentialWarmupParamScheduler,
    PreciseLinearWarmup,
    PreciseTwoStageWarmup,
    PreciseTwoStageWarmupMomentum,
)

BASES = [0.04, 0.1 / 3]


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


def make_wrapper(*lrs):
    groups = [
        dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=lr) for lr in lrs
    ]
    return OptimWrapper(torch.optim.SGD(groups, lr=lrs[0], momentum=0.9))


def train(wrapper, schedulers, updates):
    """Learning rates that each of the updates uses."""
    used = []
    for _ in range(updates):
        used.append(wrapper.get_lr()['lr'])
        wrapper.step()
        for scheduler in schedulers:
            scheduler.step()
    return used


def kwargs_for(cls, total):
    hold = dict(hold=total // 4) if cls is PreciseTwoStageWarmup else {}
    return hold | dict(begin=3, end=3 + total)


def within(value, wanted, larger_end):
    # Cosine, the worst: 1.35 U of the sine's argument (pi as a float and one
    # rounding), which weigh at most 0.9, and 1.1 U of the sine itself, twice:
    # squared, less than 3 U (U = 2^-53). The value is rounded once: U.
    # Exponential: exponent 0.4 U, start / end U, power 1.1 U, value U.
    with mpmath.workdps(60):
        return abs(mpmath.mpf(value) - wanted) <= larger_end * 2**-51


@pytest.mark.parametrize(
    ('cls', 'formula', 'total'),
    [
        (*shape, total)
        for shape in SHAPES
        for total in (1, 2, 8, 1000, 8000)
        # One step has no two stages.
        if total >= 8 or shape[0] is not PreciseTwoStageWarmup
    ],
)
def test_every_step_is_the_closed_formula(cls, formula, total):
    wrapper = make_wrapper(*BASES)
    warmup = cls(wrapper, 0.001, **kwargs_for(cls, total))
    used = train(wrapper, [warmup], 3 + total + 3)

    assert used[:3] == [BASES] * 3
    assert used[3] == [base * 0.001 for base in BASES]
    assert used[3 + total :] == [BASES] * 3
    for t in range(total):
        for base, value in zip(BASES, used[3 + t], strict=True):
            with mpmath.workdps(60):
                end = mpmath.mpf(base)
                wanted = formula(
                    end * mpmath.mpf(0.001), end, mpmath.mpf(t) / total
                )
            assert within(value, wanted, base)


@pytest.mark.parametrize('total', [2, 1000])
def test_exponential_is_mmcv_1x(total):
    wrapper = make_wrapper(0.04)
    warmup = PreciseExponentialWarmup(wrapper, 0.001, end=total)
    used = train(wrapper, [warmup], total)
    for t, (value,) in enumerate(used):
        # Its exponent and its power err as ours do, and its product: twice
        # what a value here may be off.
        mmcv = 0.04 * 0.001 ** (1 - t / total)
        assert abs(value - mmcv) <= 0.04 * 2**-50


@pytest.mark.parametrize(('cls', 'formula'), SHAPES)
@pytest.mark.parametrize('end_value', [None, 0.03])
def test_absolute_values(cls, formula, end_value):
    # Frozen at 0; the other's own value is one that no product gives back.
    wrapper = make_wrapper(0.1 / 3, 0.0)
    warmup = cls(
        wrapper,
        start_value=0.0007,
        end_value=end_value,
        **kwargs_for(cls, 8),
    )
    used = train(wrapper, [warmup], 14)
    end = end_value or 0.1 / 3
    assert used[3] == [0.0007, 0.0]
    assert used[11:] == [[end, 0.0]] * 3
    for t in range(8):
        with mpmath.workdps(60):
            ends = mpmath.mpf(0.0007), mpmath.mpf(end)
            wanted = formula(*ends, mpmath.mpf(t) / 8)
        assert within(used[3 + t][0], wanted, end)
        assert used[3 + t][1] == 0


def test_a_start_above_the_end():
    wrapper = make_wrapper(0.01)
    warmup = PreciseLinearWarmup(wrapper, start_value=0.1, end=4)
    used = train(wrapper, [warmup], 6)
    exact = [
        Fraction(0.1) + (Fraction(0.01) - Fraction(0.1)) * Fraction(t, 4)
        for t in range(4)
    ]
    assert used == [[float(v)] for v in exact] + [[0.01]] * 2


def test_one_end_value_for_different_groups_is_refused():
    with pytest.raises(ValueError, match=r'differs: \[0.04, 0.08\]'):
        PreciseLinearWarmup(
            make_wrapper(0.04, 0.08), start_value=0, end_value=0.04, end=4
        )
    wrapper = make_wrapper(0.04, 0.08)
    warmup = PreciseLinearWarmup(wrapper, start_value=0.02, end=2)
    assert train(wrapper, [warmup], 3) == [
        [0.02, 0.02],
        [0.03, 0.05],
        [0.04, 0.08],
    ]


@pytest.mark.parametrize(('cls', 'formula'), SHAPES)
@pytest.mark.parametrize('stop', [2, 3, 7, 10, 11, 12])
def test_resume_before_inside_at_and_after_the_end(cls, formula, stop):
    def build():
        wrapper = make_wrapper(*BASES)
        return wrapper, [
            cls(wrapper, 0.001, **kwargs_for(cls, 8)),
            MultiStepLR(wrapper, [7, 13], by_epoch=False),
        ]

    wrapper, schedulers = build()
    train(wrapper, schedulers, stop)
    state = wrapper.state_dict()
    states = [scheduler.state_dict() for scheduler in schedulers]
    straight = train(wrapper, schedulers, 16 - stop)

    wrapper, schedulers = build()
    wrapper.load_state_dict(state)
    for scheduler, state in zip(schedulers, states, strict=True):
        scheduler.load_state_dict(state)
    assert train(wrapper, schedulers, 16 - stop) == straight


class BrokenAtTheEnds(schedulers.WarmupParamScheduler):
    def _shape(self, start, end, progress):
        assert 0 < progress < 1
        return linear(start, end, progress)


def test_the_ends_do_not_depend_on_the_shape():
    wrapper = make_wrapper(0.04)
    warmup = BrokenAtTheEnds(wrapper, 'lr', 0.5, end=2)
    assert train(wrapper, [warmup], 4) == [[0.02], [0.03], [0.04], [0.04]]


def test_an_update_that_the_wrapper_skips_counts():
    class Skipping(OptimWrapper):
        """As AmpOptimWrapper where the gradient is not finite."""

        def step(self, **kwargs):
            pass

    wrapper = Skipping(make_wrapper(0.04).optimizer)
    warmup = PreciseLinearWarmup(wrapper, 0.5, end=2)
    assert train(wrapper, [warmup], 3) == [[0.02], [0.03], [0.04]]


def test_a_wrapper_whose_updates_cannot_be_counted_is_refused():
    class Foreign(BaseOptimWrapper):
        """As DeepSpeed's, which steps in every iteration."""

        update_params = backward = zero_grad = step = lambda self: None

    wrapper = Foreign(make_wrapper(0.04).optimizer)
    with pytest.raises(TypeError, match=r"Foreign.*count='iters'"):
        PreciseLinearWarmup(wrapper, 0.5, end=2)
    warmup = PreciseLinearWarmup(wrapper, 0.5, end=2, count='iters')
    assert train(wrapper, [warmup], 3) == [[0.02], [0.03], [0.04]]


def test_several_updates_in_one_iteration():
    wrapper = make_wrapper(0.04)
    warmup = PreciseLinearWarmup(wrapper, 0.5, begin=1, end=5)
    values = []
    for _ in range(3):
        values += wrapper.get_lr()['lr']
        for _ in range(3):
            wrapper.step()
        warmup.step()
    # Updates 0 to 2, then 3 to 5: over the end.
    assert values == [0.04, 0.03, 0.04]


def test_a_scheduler_built_later_starts_mmengines_count_again():
    wrapper = make_wrapper(0.04)
    warmup = PreciseLinearWarmup(wrapper, 0, end=8)
    train(wrapper, [warmup], 3)
    MultiStepLR(wrapper, [100], by_epoch=False)
    used = train(wrapper, [warmup], 7)
    assert used == [[0.04 * t / 8] for t in range(3, 9)] + [[0.04]]


def test_two_stages():
    wrapper = make_wrapper(0.04)
    warmup = PreciseTwoStageWarmup(wrapper, 0.5, hold=2, end=4)
    used = train(wrapper, [warmup], 6)
    assert used == [[0.02]] * 3 + [[0.03], [0.04], [0.04]]
    with pytest.raises(TypeError, match=r'hold=2.0'):
        PreciseTwoStageWarmup(wrapper, hold=2.0, end=4)
    for hold in (0, 4):
        with pytest.raises(ValueError, match=f'hold={hold}, begin=1, end=5'):
            PreciseTwoStageWarmup(wrapper, hold=hold, begin=1, end=5)


def test_two_stages_in_epochs_and_of_momentum():
    wrapper = make_wrapper(0.04)
    cfg = dict(
        type='PreciseTwoStageWarmupMomentum',
        hold=1.5,
        end=2,
        convert_to_iter_based=True,
    )
    warmup = PARAM_SCHEDULERS.build(
        cfg, default_args=dict(optimizer=wrapper, epoch_length=29)
    )
    assert type(warmup) is PreciseTwoStageWarmupMomentum
    assert (warmup.hold, warmup.end, warmup.count) == (44, 58, 'iters')
    assert wrapper.get_momentum()['momentum'] == [0.9 * 0.001]


def test_exponential_cannot_start_at_zero():
    for kwargs in (dict(start_factor=0), dict(start_value=0)):
        with pytest.raises(ValueError, match='leads away from 0'):
            PreciseExponentialWarmup(make_wrapper(0.04), end=4, **kwargs)


def test_exponential_of_weight_decay():
    wrapper = make_wrapper(0.04)
    group = wrapper.param_groups[0]
    group['weight_decay'] = 0.25
    warmup = PreciseExponentialWarmupParamScheduler(
        wrapper, 'weight_decay', 1 / 16, end=4
    )
    values = []
    for _ in range(5):
        values.append(group['weight_decay'])
        wrapper.step()
        warmup.step()
    assert values == [0.25 / 16, 0.25 / 8, 0.25 / 4, 0.25 / 2, 0.25]


def test_betas_are_resumed_as_they_were():
    def build():
        adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
        return adam, schedulers.PreciseCosineWarmupMomentum(adam, 0.5, end=4)

    adam, warmup = build()
    for _ in range(2):
        adam.step()
        warmup.step()
    betas = adam.param_groups[0]['betas']
    optimizer_state, state = adam.state_dict(), warmup.state_dict()

    adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    adam.load_state_dict(optimizer_state)
    warmup = schedulers.PreciseCosineWarmupMomentum(adam, 0.5, end=4)
    warmup.load_state_dict(state)
    assert adam.param_groups[0]['betas'] == betas


@pytest.mark.parametrize('name', schedulers.__all__)
def test_all_are_registered(name):
    if name not in ('WarmupParamScheduler', 'check_together'):
        assert PARAM_SCHEDULERS.get(name) is getattr(schedulers, name)
