# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""AGVM through the stock Runner, against a restatement of its rule."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import OPTIMIZERS

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import GradientNoiseHook, ModuleVarianceHook
from mmdet_megdet.hooks.module_variance import warmup_end
from tests.data.noise_run import curves_of, noise_config, train_on_points
from tests.data.noise_task import SIZES
from tests.data.tiny_task import AmpOnCPU  # noqa: F401

BEGIN, MOMENTUM, LARGEST = 3, 0.6, 1.5
HOOK = dict(
    type='ModuleVarianceHook',
    begin=BEGIN,
    momentum=MOMENTUM,
    max_factor=LARGEST,
    anchor='second',
)
SGD = dict(_delete_=True, type='SGD', lr=0.1, momentum=0.9, weight_decay=0.01)
ADAMW = dict(_delete_=True, type='AdamW', lr=0.05, weight_decay=0.1)
PARAMWISE = dict(custom_keys=dict(first=dict(lr_mult=0.5, decay_mult=0.1)))


@OPTIMIZERS.register_module(force=True)
class CountingSGD(torch.optim.SGD):
    """Keeps in its groups a count, and if asked what learning has summed."""

    def __init__(self, params, lr, momentum=0.0, weight_decay=0.0, sums=False):
        super().__init__(params, lr, momentum, weight_decay=weight_decay)
        self.sums = sums

    def step(self, closure=None):
        for group in self.param_groups:
            group['count'] = group.get('count', 0) + 1
            if self.sums:
                group['sum'] = group.get('sum', 0.0) + group['lr']
        return super().step(closure)


@pytest.fixture
def train(tmp_path):
    def run(hook=HOOK, folder=tmp_path, **settings):
        settings = {
            'default_hooks__module_variance': hook,
            'default_hooks__grad_noise__interval': 2,
            'train_dataloader__dataset__missing': False,
        } | settings
        return train_on_points(noise_config(folder, **settings))

    return run


def agvm_factors(history):
    """AGVM's factors by update (from 0), by ``1 - cos`` of two halves."""
    factors, now, sums = [], dict.fromkeys(SIZES, 1.0), None
    for update, moments in enumerate(history):
        factors.append(dict(now))
        if moments is None:
            continue
        if sums is None:
            sums = {name: [0.0, 0.0] for name in SIZES}
        phi = {}
        for name in SIZES:
            sums[name] = [
                0.97 * old + new
                for old, new in zip(sums[name], moments[name], strict=True)
            ]
            g2, s = sums[name]
            noise = math.inf if g2 <= 0 else max(s, 0) / g2
            phi[name] = 1 - 1 / (1 + noise / 4)
        if update + 1 >= BEGIN:
            for name in SIZES:
                ratio = math.sqrt(phi['second'] / phi[name])
                ratio = min(max(ratio, 1 / LARGEST), LARGEST)
                now[name] = MOMENTUM * now[name] + (1 - MOMENTUM) * ratio
    return factors


def weights_by_restatement(runner, recorder, kind, options, scale):
    """Train once more: each part by an optimizer of its own.

    The scale has, by part, factors of the learning rate and of weight decay.
    """
    loop = runner.train_loop
    data = loop.dataloader.dataset.points
    rows = loop.dataloader.batch_sampler.layout(0)
    weights = {
        name: torch.zeros(size, dtype=torch.float64, requires_grad=True)
        for name, size in SIZES.items()
    }
    each = {}
    for name, weight in weights.items():
        decay = options['weight_decay'] * scale[name][1]
        each[name] = kind([weight], **options | dict(weight_decay=decay))
    measured = iter(
        next(
            h for h in runner.hooks if isinstance(h, GradientNoiseHook)
        )._running.state_dict()
    )
    history = [
        next(measured) if (update + 1) % 2 == 0 else None
        for update in range(12)
    ]
    factors = agvm_factors(history)
    for update, row in enumerate(rows):
        found = dict(
            zip(SIZES, data[row].split([*SIZES.values()], 1), strict=True)
        )
        for name, weight in weights.items():
            weight.grad = (weight.detach() - found[name]).mean(0)
            factor = factors[update][name] if update >= BEGIN else 1.0
            (group,) = each[name].param_groups
            group['lr'] = options['lr'] * scale[name][0] * factor
            each[name].step()
    return torch.cat([*weights.values()]).detach(), factors


@pytest.mark.parametrize(
    ('optimizer', 'settings'),
    [
        (SGD, dict(optim_wrapper__type='AmpOnCPU')),
        (ADAMW, {}),
        (
            dict(SGD, type='CountingSGD'),
            dict(optim_wrapper__paramwise_cfg=PARAMWISE),
        ),
    ],
)
def test_weights_by_agvms_rule(train, tmp_path, optimizer, settings):
    runner, recorder = train(optim_wrapper__optimizer=optimizer, **settings)
    scale = dict.fromkeys(SIZES, (1.0, 1.0))
    if 'optim_wrapper__paramwise_cfg' in settings:
        scale['first'] = 0.5, 0.1
    options = {
        key: value
        for key, value in optimizer.items()
        if key not in ('type', '_delete_')
    }
    kind = torch.optim.AdamW if optimizer is ADAMW else torch.optim.SGD
    right, factors = weights_by_restatement(
        runner, recorder, kind, options, scale
    )
    assert torch.allclose(recorder.last, right, 1e-9, 1e-12)
    # It is something else than without.
    assert max(abs(f['first'] - 1) for f in factors) > 0.05
    groups = runner.optim_wrapper.optimizer.param_groups
    expected = {optimizer['lr'] * factor for factor, _ in scale.values()}
    assert {group['lr'] for group in groups} == expected
    if optimizer['type'] == 'CountingSGD':
        assert {group['count'] for group in groups} == {12}
    (hook,) = [h for h in runner.hooks if isinstance(h, ModuleVarianceHook)]
    assert hook.factors['second'] == 1.0
    drawn = curves_of(tmp_path, 'lr_factor/first')
    assert [step for step, _ in drawn] == [4, 6, 8, 10, 12]
    assert drawn[-1][1] == hook.factors['first']
    step = runner.optim_wrapper.optimizer.step
    assert step.__code__.co_name != 'by_part'


def test_resuming_goes_on_bit_for_bit(train, tmp_path):
    settings = dict(default_hooks__checkpoint__interval=1)
    _, undisturbed = train(
        folder=tmp_path / 'whole', train_cfg__max_epochs=2, **settings
    )
    train(folder=tmp_path / 'parts', **settings)
    _, resumed = train(
        folder=tmp_path / 'parts',
        train_cfg__max_epochs=2,
        resume=True,
        load_from=str(tmp_path / 'parts' / 'epoch_1.pth'),
        **settings,
    )
    assert torch.equal(resumed.last, undisturbed.last)
    last = [
        torch.load(tmp_path / name / 'epoch_2.pth')['module_variance']
        for name in ('whole', 'parts')
    ]
    assert last[0] == last[1] != dict(factors={})


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (
            dict(default_hooks__grad_noise=None),
            'needs GradientNoiseHook',
        ),
        (
            dict(hook=dict(HOOK, anchor='backbone')),
            "anchor='backbone' is no part of the model that is trained",
        ),
        (dict(hook=dict(HOOK, begin=-1)), 'begin=-1 must'),
        (
            dict(
                optim_wrapper__optimizer=dict(
                    _delete_=True, type='CountingSGD', lr=0.1, sums=True
                )
            ),
            "CountingSGD keeps 'sum' in its parameter groups",
        ),
    ],
)
def test_what_does_not_work_is_refused(train, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(**settings)


def test_it_begins_behind_the_warm_up(train):
    schedule = [
        dict(type='PreciseLinearWarmup', begin=0, end=5),
        dict(type='MultiStepLR', milestones=[9], end=12),
        dict(type='LinearLR', start_factor=1.0, end_factor=0.1,
             by_epoch=False, begin=5, end=12),
        dict(type='PreciseLinearWarmupMomentum', begin=0, end=9),
    ]  # fmt: skip
    runner, _ = train(hook=dict(HOOK, begin=None), param_scheduler=schedule)
    assert warmup_end(runner) == 5
    assert warmup_end(SimpleNamespace(param_schedulers=None)) == 0
