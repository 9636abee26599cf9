# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What one process's probe sees, and that it leaves no trace."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.monitor import Probe, decode, encode
from mmdet_megdet.monitor.probe import Call
from mmdet_megdet.sync_bn import MegDetSyncBN


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.ModuleDict(
        dict(
            ours=MegDetSyncBN(3),
            plain=nn.BatchNorm2d(3),
            other=nn.GroupNorm(1, 3),
            bare=nn.BatchNorm1d(2, affine=False, track_running_stats=False),
        )
    )


def rows(probe):
    vector = encode(probe)
    return vector, decode(vector[None], probe, images_per_gpu=1).layers[0]


def batch(images=2):
    return torch.randn(images, 3, 4, 4) * 3 + 1


@pytest.mark.parametrize('broken', [False, True])
def test_later_micro_steps(model, broken):
    """Statistics of the first; the order, and what is not finite, of all."""
    probe, once = Probe(model), Probe(copy.deepcopy(model))
    x = batch()
    for one in (probe, once):
        one.attach()
        one.layers[0](x)
        one.layers[1](x)
    once.detach()
    probe.end_first_step()
    for layer in (1, 0):
        probe.layers[layer](batch() * (float('nan') if broken else 1))
    probe.detach()
    _, (ours, plain, _) = rows(probe)
    _, (ours_once, plain_once, _) = rows(once)
    for row, first in ((ours, ours_once), (plain, plain_once)):
        assert (row['calls'], first['calls']) == (2, 1)
        for name in ('count', 'mean_drift', 'local_sketch', 'first_call'):
            np.testing.assert_array_equal(row[name], first[name])
    # Of four calls the third and the fourth.
    expected = [3, 2] if broken else [-1, -1]
    assert [ours['broken_call'], plain['broken_call']] == expected


def order_of(steps):
    """Hash of the order in which steps call synchronised layers."""
    probe = Probe(nn.ModuleList([MegDetSyncBN(1), MegDetSyncBN(1)]))
    probe.attach()
    for number, layers in enumerate(steps):
        if number == 1:
            probe.end_first_step()
        for layer in layers:
            group = (torch.ones(1),) * 3
            moments = torch.zeros(1), torch.zeros(1)
            probe._note(Call(layer, 1, *moments, group))
    probe.detach()
    vector = encode(probe)
    return decode(vector[None], probe, images_per_gpu=1).ranks[0]['order']


def test_the_order_is_that_of_all_micro_steps():
    usual = order_of([[0, 1], [0, 1]])
    assert order_of([[0, 1], [0, 1]]) == usual
    assert order_of([[0, 1], [1, 0]]) != usual
    assert order_of([[0, 1], [0]]) != usual


def test_layers_and_their_calls(model):
    probe = Probe(model)
    assert probe.names == ['ours', 'plain', 'bare']
    x = batch()
    probe.attach()
    model['plain'](input=x)
    for _ in range(2):
        model['ours'](x)
    probe.detach()
    vector, (ours, plain, bare) = rows(probe)
    assert [c.layer for c in probe.calls] == [1, 0, 0]
    assert [r['calls'] for r in (ours, plain, bare)] == [2, 1, 0]
    assert [r['first_call'] for r in (ours, plain, bare)] == [1, 0, -1]
    assert ours['count'] == plain['count'] == 32
    assert np.isnan(bare['running_var_max'])
    # Against the running statistics as they were: 0 and 1.
    values = x.double().movedim(1, 0).flatten(1)
    expected = (values.mean(1) / (1 + 1e-5) ** 0.5).square().mean().sqrt()
    for row in (ours, plain):
        # The local moments are sums in float32.
        assert row['mean_drift'] == pytest.approx(expected.item(), rel=1e-6)
        expected_var = values.var(1).log().square().mean().sqrt()
        assert row['var_drift'] == pytest.approx(expected_var.item(), rel=1e-6)
        assert row['running_var_max'] > 1
    assert probe.seconds()[0] > 0

    # Whatever is called, the vector has this size.
    probe.attach()
    probe.detach()
    assert encode(probe).shape == vector.shape
    assert probe.calls == []


def test_outside_of_an_iteration_there_is_no_trace(model):
    probe = Probe(model)
    probe.attach()
    assert model['ours'].observer is not None
    assert len(model['plain']._forward_pre_hooks) == 1
    probe.detach()
    probe.detach()
    model['ours'](batch())
    model['plain'](batch())
    assert probe.calls == []
    assert model['ours'].observer is None
    assert not model['plain']._forward_pre_hooks


def test_a_copy_is_not_listened_to(model):
    probe = Probe(model)
    probe.attach()
    copied = copy.deepcopy(model['ours'])
    copied(batch())
    probe.detach()
    assert probe.calls == []


def test_layers_in_eval_mode_are_seen_too(model):
    model['ours'].eval()
    probe = Probe(model)
    probe.attach()
    model['ours'](batch())
    probe.detach()
    _, (ours, *_) = rows(probe)
    assert (ours['training'], ours['calls'], ours['count']) == (0, 1, 32)


@pytest.mark.parametrize('reentrant', [False, True])
@pytest.mark.parametrize('name', ['ours', 'plain'])
def test_a_recomputed_forward_is_no_call(model, name, reentrant):
    probe = Probe(model)
    probe.attach()
    x = batch().requires_grad_()
    y = checkpoint(model[name], x, use_reentrant=reentrant)
    y.square().sum().backward()
    probe.detach()
    assert len(probe.calls) == 1


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_and_memory_formats(model, dtype):
    probe = Probe(model)
    x = batch().to(dtype)
    found = []
    for given in (
        x,
        x.to(memory_format=torch.channels_last),
        x.repeat_interleave(2, -1)[..., ::2],
    ):
        probe.attach()
        with torch.autocast('cpu', torch.bfloat16):
            model['ours'](given)
            model['plain'](given)
        probe.detach()
        found += [(c.count, c.mean) for c in probe.calls]
    expected = x.double().mean((0, 2, 3))
    for count, mean in found:
        assert count == 32
        torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-6)


def test_an_empty_batch(model):
    probe = Probe(model)
    probe.attach()
    model['ours'](batch(0))
    probe.detach()
    _, (ours, *_) = rows(probe)
    assert (ours['calls'], ours['count'], ours['dead']) == (1, 0, 0)
    assert np.isnan(ours['mean_drift'])
    assert ours['broken_call'] == -1


@pytest.mark.parametrize('constant', [0.0, 0.1, 1e4, -3e-5])
def test_constant_and_nearly_constant_channels(model, constant):
    """A channel is dead if it does not vary by more than rounding."""
    x = batch(8)
    x[:, 1] = constant
    x[:, 2] = 1e3
    # Its variance is 2^-42 of its squared mean.
    x[::2, 2] *= 1 + 1e-6
    probe = Probe(model)
    probe.attach()
    model['ours'](x)
    model['plain'](x)
    probe.detach()
    _, (ours, plain, _) = rows(probe)
    for row in (ours, plain):
        assert (row['dead'], row['first_dead']) == (1, 1)


def test_what_rounding_leaves_is_no_variance(model):
    """Sums over ranks leave up to 2^-50 of the squared mean."""
    probe = Probe(model)
    probe.attach()
    probe.detach()
    mean = torch.full((3,), 1e3, dtype=torch.float64)
    var = mean.square() * torch.tensor([0, 2.0**-50, 2.0**-42])
    group = (torch.tensor(64.0), mean, var)
    probe.calls.append(Call(0, 32, mean, 32 * var, group))
    _, (ours, *_) = rows(probe)
    assert (ours['dead'], ours['first_dead']) == (2, 0)


def test_names_do_not_show_wrappers(model, tmp_path):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    try:
        wrapped = MMDistributedDataParallel(model)
        assert Probe(wrapped).names == ['ours', 'plain', 'bare']
    finally:
        torch.distributed.destroy_process_group()


def test_many_channels_are_sampled_evenly():
    model = nn.Sequential(nn.BatchNorm1d(1000))
    probe = Probe(model)
    probe.attach()
    x = torch.arange(1000.0).repeat(4, 1) + torch.arange(4.0)[:, None]
    model(x)
    probe.detach()
    numbers = decode(encode(probe)[None], probe, None)
    means, variances = numbers.moments[0][0]
    assert len(means) == 256
    assert (means[0], means[-1]) == (1.5, 1000.5)
    assert set(np.diff(means)) <= {3.0, 4.0}
    np.testing.assert_allclose(variances, 1.25)
