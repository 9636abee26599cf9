# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What one process's probe sees."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.monitor import Probe, decode, encode, judge
from mmdet_megdet.monitor.exchange import varies
from mmdet_megdet.sync_bn import MegDetSyncBN


@pytest.fixture
def model():
    torch.manual_seed(0)
    bare = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    layers = dict(ours=MegDetSyncBN(3), plain=nn.BatchNorm2d(3), bare=bare)
    return nn.ModuleDict(layers | dict(other=nn.GroupNorm(1, 3)))


@contextmanager
def listening(model):
    probe = Probe(model)
    probe.attach()
    yield probe
    probe.detach()


def told(probe):
    return decode(encode(probe)[None], probe, images_per_gpu=1).layers[0]


def batch():
    return torch.randn(8, 3, 4, 4) * 3 + 1


@pytest.mark.parametrize('broken', [False, True])
def test_numbers_are_of_the_first_call_and_faults_of_all(model, broken):
    x, again = batch(), batch() * (torch.nan if broken else 1)
    with listening(model) as probe:
        model['plain'](input=x)
        model['ours'](x)
        model['ours'](again)
        model['plain'](again)
    assert probe.names == ['ours', 'plain', 'bare']
    assert [c.layer for c in probe.calls] == [1, 0, 0, 1]
    found = told(probe)
    ours, plain, bare = found
    assert found['calls'].tolist() == [2, 2, 0]
    assert found['first_call'].tolist() == [1, 0, -1]
    expected = [2, 3, -1] if broken else [-1, -1, -1]
    assert found['broken_call'].tolist() == expected
    assert ours['count'] == plain['count'] == 128
    assert np.isnan(bare['running_var_max'])
    # Against the running statistics as they were: 0 and 1.
    values = x.double().movedim(1, 0).flatten(1)
    expected = (values.mean(1) / (1 + 1e-5) ** 0.5).square().mean().sqrt()
    for row in (ours, plain):
        # The local moments are sums in float32.
        assert row['mean_drift'] == pytest.approx(expected.item(), rel=1e-6)
        np.testing.assert_allclose(
            row['var'][:3], values.var(1, correction=0), rtol=1e-6
        )
        assert not row['var'][3:].any()


@pytest.mark.parametrize('reentrant', [False, True])
@pytest.mark.parametrize('name', ['ours', 'plain'])
def test_a_recomputed_forward_is_no_call(model, name, reentrant):
    x = batch().requires_grad_()
    with listening(model) as probe:
        y = checkpoint(model[name], x, use_reentrant=reentrant)
        y.square().sum().backward()
    assert len(probe.calls) == 1


@pytest.mark.parametrize('constant', [0.0, 0.1, 1e4, -3e-5])
def test_constant_and_nearly_constant_channels(model, constant):
    """A channel is dead if it does not vary by more than rounding."""
    x = batch()
    x[:, 1] = constant
    x[:, 2] = 1e3
    # Its variance is 2^-42 of its squared mean.
    x[::2, 2] *= 1 + 1e-6
    with listening(model) as probe:
        model['ours'](x)
        model['plain'](x)
    assert told(probe)['dead'].tolist() == [1, 1, 0]
    # Sums over ranks leave up to 2^-50 of the squared mean.
    assert not varies(np.array(1e3), np.array(1e6 * 2.0**-50))


def test_communication_that_is_slow_on_all_ranks(model):
    with listening(model) as probe:
        pass
    numbers = decode(np.tile(encode(probe), (4, 1)), probe, images_per_gpu=2)
    numbers.ranks['seconds'], numbers.ranks['collectives'] = 1, 0.6
    said = [
        [f for f in judge(numbers, share, 1e6) if f.check == 'collective-time']
        for share in (0.5, 0.7)
    ]
    assert [f.ranks for f in said[0]] == [[]]
    assert '60% of the iteration' in said[0][0].message
    assert not said[1]


def test_names_of_layers_may_have_braces():
    model = nn.ModuleDict({'{a}': MegDetSyncBN(3), '{}': MegDetSyncBN(3)})
    with listening(model) as probe:
        pass
    numbers = decode(np.tile(encode(probe), (2, 1)), probe, images_per_gpu=2)
    numbers.ranks['order'], numbers.layers['communicates'] = [1, 2], 1
    numbers.layers['first_call'] = [[0, 1], [1, 0]]
    found = {f.check: f for f in judge(numbers, 0.5, 1e6)}
    assert found['call-order'].layers == ['{a}', '{}']
    assert 'is {a} on rank 0 and {} on rank 1' in found['call-order'].message


def test_many_channels_are_sampled_evenly():
    model = nn.Sequential(nn.BatchNorm1d(1000))
    with listening(model) as probe:
        model(torch.arange(1000.0).repeat(4, 1) + torch.arange(4.0)[:, None])
    (row,) = told(probe)
    assert (row['mean'][0], row['mean'][-1]) == (1.5, 1000.5)
    assert set(np.diff(row['mean'])) <= {7.0, 8.0}
    np.testing.assert_allclose(row['var'], 1.25)
