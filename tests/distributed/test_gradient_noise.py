# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The moments of an update on several ranks, against definition and truth."""

import copy
import math
from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mmengine.optim import OptimWrapper
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from mmdet_megdet import noise
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.data import noise_task
from tests.data.noise_task import SIZES, MeanFinder, definition, points
from tests.data.tiny_task import AmpOnCPU
from tests.distributed.ranks import run_ranks, run_threads

IMAGES = 2  # a rank has at once
KINDS = ('plain', 'amp', 'uneven', 'frozen')
# Of the convolutional net, whose four ranks are one BN group.
RANKS, STEPS, UPDATES = 4, 2, 100
GROUP = RANKS * IMAGES


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
        split = noise.Split(steps, ranks, steps * world_size * IMAGES)
        meter = noise.GradientMeter(noise.parts_of(wrapped), split)
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
    record = noise.read_records(tmp_path / 'together')[0]
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
    meter = noise.GradientMeter(noise.parts_of(model), noise.Split(2, 1, 4))
    meter.attach(wrapper, 0)
    meter.begin_micro_step()
    for _ in range(2):
        model(points(2))['loss'].backward()
    wrapper.step()
    meter.detach()
    with pytest.raises(ConfigError, match='several pieces'):
        meter.measure()


class Net(nn.Module):
    """Two convolutions with norm layers, and a linear head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential()
        for channels in (3, 16):
            conv = nn.Conv2d(channels, 16, 3, bias=False)
            self.backbone.extend([conv, MegDetSyncBN(16), nn.ReLU()])
        self.head = nn.Linear(16, 4)

    def loss(self, images, classes):
        features = self.backbone(images).mean((2, 3))
        return cross_entropy(self.head(features), classes)


def batch(seed, count):
    """Stripes of four directions in varying light, and their direction."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(4, (count,), generator=generator)
    angles = (classes * torch.pi / 4)[:, None, None]
    y, x = torch.arange(12.0)[:, None], torch.arange(12.0)
    stripes = (angles.cos() * x + angles.sin() * y).sin()[:, None]
    light = torch.rand(count, 1, 1, 1, generator=generator) * 3
    grain = torch.randn(count, 3, 12, 12, generator=generator)
    return (stripes + grain) * light + light, classes


def truth(net, draws=800):
    """Of the backbone, from whole BN groups by one process."""
    found = []
    for seed in range(draws):
        net.zero_grad()
        net.loss(*batch(20_000 + seed, GROUP)).backward()
        grads = [p.grad.flatten() for p in net.backbone.parameters()]
        found.append(torch.cat(grads).double())
    found = torch.stack(found)
    s = GROUP * found.var(0).sum().item()
    return s / (found.mean(0).square().sum().item() - s / GROUP / draws)


def estimates(rank, world_size, net):
    """Moments of updates: ours, and with ranks taken to be independent."""
    # Threads that seed their common generator would get weights by chance.
    net = copy.deepcopy(net)
    own = slice(rank * IMAGES, (rank + 1) * IMAGES)
    wrapper = OptimWrapper(torch.optim.SGD(net.parameters(), lr=0.0), STEPS)
    meters = [
        noise.GradientMeter(
            noise.parts_of(net), noise.Split(STEPS, ranks, GROUP * STEPS)
        )
        for ranks in (noise.coupled_ranks(net), 1)
    ]
    found = []
    for update in range(UPDATES):
        for meter in meters:
            meter.attach(wrapper, update)
        for step in range(STEPS):
            for meter in meters:
                meter.begin_micro_step()
            seen = batch(update * STEPS + step, GROUP)
            loss = net.loss(*(part[own] for part in seen))
            wrapper.backward(wrapper.scale_loss(loss))
        # As DDP does, which threads cannot have.
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        wrapper.step()
        wrapper.zero_grad()
        for meter in reversed(meters):
            meter.detach()
        found.append([meter.measure()['backbone'] for meter in meters])
    return zip(*found, strict=True)


def test_ranks_of_a_bn_group_are_not_independent():
    """The trap of synchronised BatchNorm, on a small convolutional net.

    Four ranks of two images are one BN group; an update has two micro-steps,
    and weights that stay. The truth is from whole BN groups in one process.
    """
    net = Net()
    ours, naive = run_threads(estimates, RANKS, net)[0]
    scale, right = noise.noise_scale(*zip(*ours, strict=True)), truth(net)
    assert right / 2.5 < scale.value < right * 2.5
    assert scale.low < right < scale.high
    g2, s = map(sum, zip(*naive, strict=True))
    assert s / g2 < 0
