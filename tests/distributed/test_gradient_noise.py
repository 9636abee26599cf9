# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The moments of an update on several ranks, against their definition."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from mmengine.optim import OptimWrapper
from torch.nn.parallel import DistributedDataParallel

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.noise import GradientMeter, Split, parts_of, read_records
from tests.data import noise_task
from tests.data.noise_task import SIZES, MeanFinder, definition, points
from tests.data.tiny_task import AmpOnCPU
from tests.distributed.ranks import run_ranks

IMAGES = 2  # a rank has at once
KINDS = ('plain', 'amp', 'uneven', 'frozen')


def update(kind, micro_steps, world_size):
    """Points of an update, (micro-steps, ranks, images, 9)."""
    shape = micro_steps, world_size, IMAGES, 9
    drawn = points(math.prod(shape[:3]), seed=micro_steps).reshape(shape)
    if kind == 'uneven':
        # The last micro-step of the last rank does not use the second part,
        # nor does rank 0's first.
        drawn[-1, -1, :, SIZES['first'] :] = torch.nan
        drawn[0, 0, :, SIZES['first'] :] = torch.nan
    return drawn


def measure(rank, world_size):
    """Moments for each kind of training, micro-steps and ranks in a group."""
    found = {}
    for kind, steps, ranks in product(KINDS, (1, 2, 3), (1, 2, 4)):
        if steps == 1 and ranks == world_size:
            continue
        model = MeanFinder()
        model.second.requires_grad_(kind != 'frozen')
        wrapped = DistributedDataParallel(
            model, find_unused_parameters=kind == 'uneven'
        )
        wrapper = (AmpOnCPU if kind == 'amp' else OptimWrapper)(
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            accumulative_counts=steps,
            clip_grad=dict(max_norm=0.01),
        )
        split = Split(steps, ranks, steps * world_size * IMAGES)
        meter = GradientMeter(parts_of(wrapped), split)
        meter.attach(wrapper, steps)
        for inputs in update(kind, steps, world_size)[:, rank]:
            meter.begin_micro_step()
            with wrapper.optim_context(wrapped):
                loss = wrapped(inputs)['loss']
            wrapper.update_params(loss)
        meter.detach()
        assert 'step' not in vars(wrapper)
        assert not any(p._backward_hooks for p in model.parameters())
        found[kind, steps, ranks] = meter.measure()
    return found


def expected(kind, steps, ranks, world_size):
    """By pairs of independent parts, in float64."""
    # Weights are 0; a rank without a part's gradient counts as 0.
    gradients = -update(kind, steps, world_size).mean(2).nan_to_num()
    parts = gradients.reshape(-1, ranks, 9).mean(1).numpy()
    moments = definition(parts, steps * world_size * IMAGES)
    if kind == 'frozen':
        del moments['second']
        moments['total'] = moments['first']
    return moments


def test_moments_in_every_grouping():
    by_rank = run_ranks(measure, 4)
    assert by_rank == [by_rank[0]] * 4
    assert len(by_rank[0]) == len(KINDS) * 8
    for key, found in by_rank[0].items():
        right = expected(*key, world_size=4)
        assert found.keys() == right.keys()
        for name in right:
            told = key, name, found[name], right[name]
            assert np.allclose(*told[2:], 1e-10, 1e-12), told


def train(rank, world_size, folder):
    """Train, parts at rates of their own; the weights, and a refusal."""
    settings = dict(
        train_dataloader__batch_size=4 // world_size,
        train_dataloader__dataset__missing=False,
        default_hooks__checkpoint__interval=1,
        default_hooks__module_variance=dict(
            type='ModuleVarianceHook', begin=2, anchor='second'
        ),
    )
    half = dict(default_hooks__total_batch__total_batch_size=4)
    with pytest.raises(ConfigError) as error:
        noise_task.train_on_points(folder, **half, **settings)
    _, recorder = noise_task.train_on_points(folder, **settings)
    return recorder.last.tolist(), str(error.value)


def test_other_hardware_measures_the_same(tmp_path):
    """Two micro-steps of a BN group of 4 images, on one rank and on two."""
    weights, _ = train(0, 1, tmp_path / 'alone')
    of_two = run_ranks(train, 2, tmp_path / 'together')
    assert of_two == [of_two[0]] * 2
    other_weights, refusal = of_two[0]
    assert np.allclose(weights, other_weights, 1e-9, 1e-12)
    alone, together = (
        torch.load(tmp_path / name / 'epoch_1.pth')
        for name in ('alone', 'together')
    )
    measured = [c['gradient_noise']['measurements'] for c in (alone, together)]
    assert len(measured[0]) == 12
    for one, two in zip(*measured, strict=True):
        for name in one:
            assert np.allclose(one[name], two[name], 1e-10, 1e-12)
    # What AGVM makes of it.
    factors, others = (
        c['module_variance']['factors'] for c in (alone, together)
    )
    assert factors == pytest.approx(others, rel=1e-9)
    assert abs(factors['first'] - 1) > 0.01
    record = read_records(tmp_path / 'together')[0]
    assert (record.groups, record.micro_steps, record.part_images) == (1, 2, 4)
    # With half the batch there is a single part.
    assert (
        'an update of 4 images is one BN group in one micro-step (2 ranks x 2 '
        'images), and ranks within a BN group are not independent. Use '
        '--images-per-gpu or --bn-size with less, or a larger total batch.'
    ) in refusal


def test_a_gradient_in_pieces_is_noticed():
    model = MeanFinder()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    meter = GradientMeter(parts_of(model), Split(2, 1, 4))
    meter.attach(wrapper, 0)
    meter.begin_micro_step()
    for _ in range(2):
        model(points(2))['loss'].backward()
    wrapper.step()
    meter.detach()
    with pytest.raises(ConfigError, match='several pieces'):
        meter.measure()
