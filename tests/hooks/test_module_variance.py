# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""AGVM through the stock Runner, against a restatement of its rule."""

import math

import numpy as np
import pytest
import torch
from mmengine.registry import OPTIMIZERS

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import ModuleVarianceHook
from mmdet_megdet.noise import read_records
from tests.data.noise_task import SIZES, train_on_points
from tests.data.tiny_run import curves_of

BEGIN, MOMENTUM, LARGEST = 3, 0.6, 1.5
HOOK = dict(
    type='ModuleVarianceHook',
    begin=BEGIN,
    momentum=MOMENTUM,
    max_factor=LARGEST,
    anchor='second',
)
SGD = dict(lr=0.1, momentum=0.9, weight_decay=0.01)
ADAMW = dict(lr=0.05, weight_decay=0.1)
FIRST = dict(first=dict(lr_mult=0.5, decay_mult=0.1))
PARAMWISE = dict(paramwise_cfg=dict(custom_keys=FIRST))


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


def train(folder, hook=HOOK, **settings):
    defaults = dict(
        default_hooks__module_variance=hook,
        default_hooks__grad_noise=dict(type='GradientNoiseHook', interval=2),
        train_dataloader__dataset__missing=False,
    )
    return train_on_points(folder, **defaults | settings)


def restated(folder, loader, kind, options):
    """Train once more, each part by an optimizer with options of its own.

    Returns weights and AGVM's factors, by ``1 - cos`` of two halves.
    """
    measured = {record.update: record.parts for record in read_records(folder)}
    weights, each = {}, {}
    for name, size in SIZES.items():
        weights[name] = torch.zeros(size, dtype=torch.float64)
        each[name] = kind([weights[name]], **options[name])
    factors = dict.fromkeys(SIZES, 1.0)
    sums, phi = dict.fromkeys(SIZES, np.zeros(2)), {}
    for update, row in enumerate(loader.batch_sampler.layout(0)):
        points = loader.dataset.points[row].split([*SIZES.values()], 1)
        for (name, weight), found in zip(weights.items(), points, strict=True):
            weight.grad = (weight - found).mean(0)
            factor = factors[name] if update >= BEGIN else 1.0
            (group,) = each[name].param_groups
            group['lr'] = options[name]['lr'] * factor
            each[name].step()
        if update + 1 not in measured:
            continue
        for name, moments in measured[update + 1].items():
            if name in SIZES:
                sums[name] = 0.97 * sums[name] + [*moments.values()]
                g2, s = sums[name]
                noise = math.inf if g2 <= 0 else max(s, 0) / g2
                phi[name] = 1 - 1 / (1 + noise / 4)
        for name in SIZES:
            ratio = math.sqrt(phi['second'] / phi[name])
            ratio = min(max(ratio, 1 / LARGEST), LARGEST)
            if update + 1 >= BEGIN:
                factors[name] *= MOMENTUM
                factors[name] += (1 - MOMENTUM) * ratio
    return torch.cat([*weights.values()]), factors


@pytest.mark.parametrize(('kind', 'options', 'first', 'wrapper'), [
    ('SGD', SGD, {}, dict(type='AmpOnCPU')),
    ('AdamW', ADAMW, {}, {}),
    ('CountingSGD', SGD, dict(lr=0.05, weight_decay=0.001), PARAMWISE),
])  # fmt: skip
def test_weights_by_agvms_rule(tmp_path, kind, options, first, wrapper):
    optimizer = dict(options, _delete_=True, type=kind)
    wrapper = dict(wrapper, optimizer=optimizer)
    runner, recorder = train(tmp_path, optim_wrapper=wrapper)
    loader, made_by = runner.train_loop.dataloader, OPTIMIZERS.get(kind)
    by_part = dict(first=options | first, second=options)
    right, factors = restated(tmp_path, loader, made_by, by_part)
    assert torch.allclose(recorder.last, right, 1e-9, 1e-12)
    (hook,) = [h for h in runner.hooks if isinstance(h, ModuleVarianceHook)]
    assert hook.factors == pytest.approx(factors, rel=1e-9)
    # It is something else than without.
    assert abs(factors['first'] - 1) > 0.05
    assert hook.factors['second'] == 1.0
    drawn = curves_of(tmp_path, 'lr_factor/first')
    assert [step for step, _ in drawn] == [4, 6, 8, 10, 12]
    assert drawn[-1][1] == hook.factors['first']
    # The optimizer is as it was, but for what it counts.
    own = runner.optim_wrapper.optimizer
    rates = {group['lr'] for group in own.param_groups}
    assert rates == {settings['lr'] for settings in by_part.values()}
    if kind == 'CountingSGD':
        assert {group['count'] for group in own.param_groups} == {12}
    assert own.step.__code__.co_name != 'by_part'


def test_resuming_goes_on_bit_for_bit(tmp_path):
    settings = dict(default_hooks__checkpoint__interval=1)
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    train(parts, **settings)
    settings |= dict(train_cfg__max_epochs=2)
    _, undisturbed = train(whole, **settings)
    path = str(parts / 'epoch_1.pth')
    _, resumed = train(parts, resume=True, load_from=path, **settings)
    assert torch.equal(resumed.last, undisturbed.last)
    one, other = (torch.load(p / 'epoch_2.pth') for p in (whole, parts))
    assert one['module_variance'] == other['module_variance']
    assert one['module_variance']['factors']
    assert one['gradient_noise'] == other['gradient_noise']
    assert len(one['gradient_noise']['measurements']) == 12


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(default_hooks__grad_noise=None), 'needs GradientNoiseHook'),
        (dict(hook=dict(HOOK, anchor='backbone')),
         "anchor='backbone' is no part of the model that is trained"),
        (dict(hook=dict(HOOK, begin=-1)), 'begin=-1 must'),
        (dict(optim_wrapper__optimizer=dict(
            _delete_=True, type='CountingSGD', lr=0.1, sums=True)),
         "CountingSGD keeps 'sum' in its parameter groups"),
    ],
)  # fmt: skip
def test_what_does_not_work_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, **settings)


def test_it_begins_behind_the_warm_up(tmp_path):
    schedule = [
        dict(type='PreciseLinearWarmup', begin=0, end=5),
        dict(type='MultiStepLR', milestones=[9], end=12),
        dict(type='LinearLR', start_factor=1.0, end_factor=0.1,
             by_epoch=False, begin=5, end=12),
        dict(type='PreciseLinearWarmupMomentum', begin=0, end=9),
    ]  # fmt: skip
    for schedulers, first in ((schedule, 6), (None, 2)):
        folder = tmp_path / f'from_{first}'
        hook = dict(HOOK, begin=None)
        train(folder, hook=hook, param_scheduler=schedulers)
        # Of the updates that are measured.
        assert curves_of(folder, 'lr_factor/first')[0][0] == first
