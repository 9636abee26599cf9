# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The contract of all warm-ups, by the linear one, without a Runner."""

import math
from logging import WARNING
from unittest import mock

import pytest
import torch
from mmengine.optim import BaseOptimWrapper, MultiStepLR, OptimWrapper

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.schedulers import (
    PreciseCosineWarmup,
    PreciseLinearWarmup,
    PreciseLinearWarmupMomentum,
)
from tests.schedulers.steps import (
    make_optimizer,
    make_wrapper,
    read,
    round_trip,
    train,
)


def test_momentum_of_sgd_and_adam():
    expected = [0.45, 0.9 * 0.75, 0.9, 0.9]
    sgd = make_optimizer(0.1)
    warmup = PreciseLinearWarmupMomentum(sgd, 0.5, end=2)
    assert train(sgd, [warmup], 4, 'momentum') == [[b] for b in expected]

    adam, resumed = (
        torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
        for _ in range(2)
    )
    warmup = PreciseLinearWarmupMomentum(adam, 0.5, end=2)
    used = train(adam, [warmup], 1, 'betas')
    optimizer_state, (state,) = round_trip(adam, [warmup])
    used += train(adam, [warmup], 3, 'betas')
    assert used == [[(beta, 0.999)] for beta in expected]
    resumed.load_state_dict(optimizer_state)
    warmup = PreciseLinearWarmupMomentum(resumed, 0.5, end=2)
    warmup.load_state_dict(state)
    assert read(resumed, 'betas') == used[1]


def test_an_update_that_the_wrapper_skips_counts():
    class Skipping(OptimWrapper):
        """As AmpOptimWrapper where the gradient is not finite."""

        def step(self, **kwargs):
            pass

    wrapper = Skipping(make_optimizer(0.04))
    warmup = PreciseLinearWarmup(wrapper, 0.5, end=2)
    assert train(wrapper, [warmup], 3) == [[0.02], [0.03], [0.04]]


def test_a_wrapper_whose_updates_cannot_be_counted_is_refused():
    class Foreign(BaseOptimWrapper):
        """As DeepSpeed's, which steps in every iteration."""

        update_params = backward = zero_grad = step = lambda self: None

    wrapper = Foreign(make_optimizer(0.04))
    with pytest.raises(ConfigError, match=r"Foreign.*count='iters'"):
        PreciseLinearWarmup(wrapper, 0.5, end=2)
    warmup = PreciseLinearWarmup(wrapper, 0.5, end=2, count='iters')
    assert train(wrapper, [warmup], 3) == [[0.02], [0.03], [0.04]]


def test_a_scheduler_built_later_starts_mmengines_count_again():
    wrapper = make_wrapper(0.04)
    warmup = PreciseLinearWarmup(wrapper, 0, end=8)
    train(wrapper, [warmup], 3)
    MultiStepLR(wrapper, [100], by_epoch=False)
    used = train(wrapper, [warmup], 4)
    assert used == [[0.04 * t / 8] for t in range(3, 7)]
    # Several updates at once come to the end, and not beyond it.
    for _ in range(2):
        wrapper.step()
    assert train(wrapper, [warmup], 2) == [[0.04 * 7 / 8], [0.04]]


def in_order(optimizer, warmup_first, milestones, **kwargs):
    makers = [
        lambda: PreciseLinearWarmup(optimizer, **kwargs),
        lambda: MultiStepLR(optimizer, milestones, by_epoch=False),
    ]
    return [make() for make in (makers if warmup_first else makers[::-1])]


# In the step that writes 0 after us, or in the next before us.
@pytest.mark.parametrize(
    ('warmup_first', 'milestone'), [(True, 3), (False, 4)]
)
def test_a_milestone_at_the_value_zero_is_refused(warmup_first, milestone):
    optimizer = make_optimizer(0.04)
    schedulers = in_order(
        optimizer, warmup_first, [milestone], start_factor=0, begin=3, end=9
    )
    train(optimizer, schedulers, 3)
    if warmup_first:
        # Nor is it saved.
        with pytest.raises(ConfigError, match='factor is lost'):
            schedulers[0].state_dict()
    with pytest.raises(ConfigError, match='factor is lost'):
        train(optimizer, schedulers, 2)


@pytest.mark.parametrize('stop', [0, 2, 3, 7, 12, 13, 17])
@pytest.mark.parametrize('warmup_first', [True, False])
# As Runner.resume does it; before schedulers are built; not at all.
@pytest.mark.parametrize('load', ['after', 'before', 'never'])
def test_resume_continues_exactly(stop, warmup_first, load, monkeypatch):
    """And a frozen group stays frozen."""
    log = mock.Mock()
    monkeypatch.setattr('mmdet_megdet.schedulers.warmup.print_log', log)
    milestones = [7, 13]
    kwargs = dict(start_factor=0, begin=3, end=13)
    optimizer = make_optimizer(0.04, 0.07, 0.0)
    schedulers = in_order(optimizer, warmup_first, milestones, **kwargs)
    train(optimizer, schedulers, stop)
    optimizer_state, states = round_trip(optimizer, schedulers)
    straight = train(optimizer, schedulers, 20 - stop)
    assert straight[-1] == pytest.approx([0.04e-2, 0.07e-2, 0.0], rel=1e-14)

    # The checkpoint's settings rule.
    optimizer = make_optimizer(0.02, 0.07, 0.0)
    kwargs = dict(start_factor=0.1, begin=1, end=6)
    if load == 'before':
        optimizer.load_state_dict(optimizer_state)
    schedulers = in_order(optimizer, warmup_first, milestones, **kwargs)
    if load == 'after':
        optimizer.load_state_dict(optimizer_state)
    for scheduler, state in zip(schedulers, states, strict=True):
        scheduler.load_state_dict(state)
    assert train(optimizer, schedulers, 20 - stop) == straight
    said = (
        'PreciseLinearWarmup resumes with what the checkpoint says, not the '
        'config: begin is 3 (config: 1), end is 13 (config: 6), start_factor '
        'is 0 (config: 0.1)'
    )
    if load != 'before':
        said += ', base lr is [0.0, 0.04, 0.07] (config: [0.0, 0.02, 0.07])'
    log.assert_called_once_with(f'{said}.', logger='current', level=WARNING)


def test_the_state_of_something_else_is_refused():
    warmup = PreciseLinearWarmup(make_optimizer(0.04), end=8)
    for other in (
        MultiStepLR(make_optimizer(0.04), [2]),
        PreciseLinearWarmup(make_optimizer(0.04, 0.04), end=8),
        PreciseLinearWarmupMomentum(make_optimizer(0.04), end=8),
        PreciseCosineWarmup(make_optimizer(0.04), end=8),
    ):
        with pytest.raises(ConfigError, match='state of another'):
            warmup.load_state_dict(other.state_dict())


NO_EPOCHS = 'turns epochs into iterations'


@pytest.mark.parametrize(
    ('kwargs', 'match'),
    [
        (dict(), 'end is required'),
        (dict(begin=5, end=5), 'begin=5, end=5'),
        (dict(begin=-1, end=5), 'begin=-1'),
        (dict(end=8e3), 'end=8000.0'),
        (dict(begin=True, end=8), 'begin=True'),
        (dict(end=8, start_factor=-0.1), '-0.1'),
        (dict(end=8, start_factor=math.nan), 'nan'),
        (dict(end=8, count='epochs'), "count='epochs'"),
        (dict(end=8, count='iters', by_epoch=True), 'left out'),
        (dict(end=8, start_factor=0.1, start_value=0.1), 'or'),
        (dict(end=8, start_factor=0.1, end_value=0.1), 'or'),
        (dict(end=8, end_value=0.1), 'start_value with'),
        (dict(end=8, start_value=math.inf), 'inf'),
        (dict(end=8, start_value=0, end_value=0), '> 0'),
        (dict(end=8, start_value=0, end_value=1), r'differs: \[0.04, 0.08\]'),
        (dict(end=8, epoch_length=9, by_epoch=False), NO_EPOCHS),
        (dict(end=8, epoch_length=0), NO_EPOCHS),
        (dict(end=8, epoch_length=9, count='up'), NO_EPOCHS),
    ],
)
def test_bad_arguments(kwargs, match):
    build = PreciseLinearWarmup
    if 'epoch_length' in kwargs:
        build = PreciseLinearWarmup.build_iter_from_epoch
    with pytest.raises(ConfigError, match=match):
        build(make_optimizer(0.04, 0.08), **kwargs)
