# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All schedulers of MMEngine and mmdet beside a warm-up, in both orders.

Each gives the product of what both do alone, or is refused by name.
"""

import itertools
from contextlib import nullcontext

import mmdet.engine.schedulers  # noqa: F401  registers QuadraticWarmup
import pytest
from mmengine.registry import PARAM_SCHEDULERS

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.schedulers import check_together
from tests.schedulers.steps import make_optimizer, train

BASES = [0.04, 0.07]
WARMUP = dict(type='PreciseLinearWarmup', start_factor=0.01, begin=2, end=12)
COSINE = dict(type='CosineAnnealingLR', end=30)
RESTART = dict(type='CosineRestartLR', periods=[15] * 2, eta_min=0)
RESTART['restart_weights'] = [1, 0.5]

MULTIPLY = [
    dict(type='StepLR', step_size=4),
    dict(type='MultiStepLR', milestones=[2, 5, 11, 12, 20], gamma=0.5),
    dict(type='ExponentialLR', gamma=0.97),
    dict(type='LinearLR', start_factor=0.5, end=9),
    dict(type='PolyLR', power=2.0, end=40),
    COSINE,
    dict(type='CosineAnnealingLR', T_max=20, end=30),
    dict(type='PreciseCosineWarmup', start_factor=0.1, begin=5, end=20),
]
OTHERWISE = [
    dict(COSINE, eta_min=1e-3),
    dict(type='CosineAnnealingLR', T_max=4, end=30),
    dict(type='PolyLR', eta_min=1e-3, end=30),
    dict(type='OneCycleLR', eta_max=0.1, total_steps=40),
    RESTART,
    dict(RESTART, begin=11),
    dict(type='mmdet.QuadraticWarmupLR', end=10),
]
# Begin when the warm-up has ended, or are over when it begins.
IN_TURN = [
    dict(COSINE, begin=12, eta_min=1e-3),
    dict(type='PolyLR', begin=12, end=30, eta_min=1e-3),
    dict(RESTART, begin=12),
    dict(type='mmdet.QuadraticWarmupLR', begin=12, end=22),
    dict(type='PolyLR', end=2, eta_min=1e-3),
]


def build(optimizer, *configs):
    return [
        PARAM_SCHEDULERS.build(
            {'by_epoch': False} | config,
            default_args=dict(optimizer=optimizer),
        )
        for config in configs
    ]


def alone(config):
    optimizer = make_optimizer(*BASES)
    return train(optimizer, build(optimizer, config), 35)


def pair(config, warmup_first):
    optimizer = make_optimizer(*BASES)
    configs = [WARMUP, config] if warmup_first else [config, WARMUP]
    return optimizer, build(optimizer, *configs)


@pytest.mark.parametrize('warmup_first', [True, False])
@pytest.mark.parametrize('config', MULTIPLY, ids=str)
def test_the_product_of_both(config, warmup_first):
    optimizer, schedulers = pair(config, warmup_first)
    check_together(schedulers, 1, 100)
    used = train(optimizer, schedulers, 35)
    for row in zip(used, alone(WARMUP), alone(config), strict=True):
        for value, warm, other, base in zip(*row, BASES, strict=True):
            # The recursions of both round at each of 35 steps.
            expected = pytest.approx(warm * other / base, rel=1e-13, abs=1e-17)
            assert value == expected


@pytest.mark.parametrize(
    ('config', 'warmup_first'),
    [
        *itertools.product(OTHERWISE, [True, False]),
        # At the last step the order in the list decides.
        (dict(RESTART, begin=12), False),
    ],
    ids=str,
)
def test_what_does_not_multiply_is_refused_by_name(config, warmup_first):
    name = config['type'].removeprefix('mmdet.')
    optimizer, schedulers = pair(config, warmup_first)
    refusal = rf'{name}\(.*PreciseLinearWarmup.* stand after it'
    with pytest.raises(ConfigError, match=refusal):
        check_together(schedulers, 1, 100)
    used = []
    with pytest.raises(ConfigError, match=refusal):
        train(optimizer, schedulers, 35, used=used)
    if name != 'OneCycleLR':
        assert max(lr for lr, _ in used) <= BASES[0]


@pytest.mark.parametrize('config', IN_TURN, ids=str)
def test_one_after_the_other_is_exact(config):
    """Also of those that add or set, if they stand in their order."""
    before = 'begin' not in config
    optimizer, schedulers = pair(config, warmup_first=not before)
    check_together(schedulers, 1, 100)
    used = train(optimizer, schedulers, 35)
    warm, other = alone(WARMUP), alone(config)
    if before:
        assert used[:2] == other[:2]
        factor = other[1][0] / BASES[0]
        for now, then in zip(used[2:], warm[2:], strict=True):
            assert now[0] == pytest.approx(then[0] * factor, rel=1e-15)
    else:
        assert used == warm[:12] + other[12:]


@pytest.mark.parametrize(
    ('begin', 'by_epoch', 'per_update', 'per_epoch', 'allowed'),
    [
        # 10 updates are over after 80 iterations.
        (10, False, 1, 100, True),
        (10, False, 8, 100, False),
        # An epoch's first step puts back what it finds.
        (0, True, 8, 80, True),
        (0, True, 8, 79, False),
        (1, True, 8, 39, False),
    ],
)
def test_units(begin, by_epoch, per_update, per_epoch, allowed):
    schedulers = build(
        make_optimizer(*BASES),
        dict(COSINE, begin=begin, end=900, eta_min=0.01, by_epoch=by_epoch),
        dict(WARMUP, begin=0, end=10),
    )
    refused = pytest.raises(ConfigError, match='CosineAnnealingLR')
    with nullcontext() if allowed else refused:
        check_together(schedulers, per_update, per_epoch)


def test_an_epoch_that_ends_inside_the_warmup():
    optimizer = make_optimizer(*BASES)
    plateau = dict(type='ReduceOnPlateauLR', min_value=1e-3, patience=0)
    warmup, other = build(
        optimizer, WARMUP, dict(plateau, by_epoch=True, begin=0, end=9)
    )
    train(optimizer, [warmup], 6)
    for _ in range(2):
        other.step(dict(loss=1.0))  # does not fall the second time
    with pytest.raises(ConfigError, match='ReduceOnPlateauLR'):
        train(optimizer, [warmup], 1)
