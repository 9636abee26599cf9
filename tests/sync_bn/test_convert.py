# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Conversion of BatchNorm to MegDetSyncBN and back, in one process."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from inspect import signature

import pytest
import torch
from mmcv.cnn import ConvModule
from mmcv.ops import SyncBatchNorm as MMSyncBN
from mmdet.models import ResNet
from mmengine.model import initialize, revert_sync_batchnorm
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm as MMCVSyncBN
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    convert_batch_norm,
    report_batch_norm,
    revert_to_batch_norm,
)

SHAPES = {
    nn.BatchNorm1d: (6, 3, 5),
    nn.BatchNorm2d: (6, 3, 5, 4),
    nn.BatchNorm3d: (2, 3, 4, 2, 3),
    nn.SyncBatchNorm: (6, 3, 5, 4),
    MMCVSyncBN: (6, 3, 5, 4),
}
SETTINGS = [
    {},
    dict(eps=1e-3, momentum=0.01),
    dict(momentum=None),
    dict(affine=False),
    dict(track_running_stats=False),
]
if 'bias' in signature(nn.BatchNorm2d.__init__).parameters:  # not in torch 2.6
    SETTINGS.append(dict(bias=False))


class OtherDefaults(nn.BatchNorm2d):
    """A subclass that normalises as its base does."""

    def __init__(self, num_features):
        super().__init__(num_features, eps=1e-3, momentum=0.03)

    def _check_input_dim(self, input):
        if input.dim() != 4:
            raise ValueError('no image')


class Activated(nn.BatchNorm2d):
    """A subclass that does more."""

    def forward(self, input):
        return super().forward(input).relu()


class StaysInEval(nn.BatchNorm2d):
    """A subclass that has another idea of training."""

    def train(self, mode=True):
        return super().train(False)


def fill(layer, seed=0):
    """Give a layer, or the layers of a model, a state to lose."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if name.endswith('num_batches_tracked'):
                tensor.fill_(7)
            elif name.endswith(('running_mean', 'running_var', 'weight')):
                tensor.uniform_(0.5, 2, generator=generator)
    return layer


def tensors(module):
    return {
        **dict(module.named_parameters()),
        **dict(module.named_buffers()),
    }


@pytest.mark.parametrize('kwargs', SETTINGS, ids=str)
@pytest.mark.parametrize('cls', SHAPES)
def test_everything_of_a_layer_stays(cls, kwargs):
    layer = fill(cls(3, **kwargs).double().eval())
    if layer.affine:
        layer.weight.requires_grad_(False)
    before = tensors(layer)
    settings = ['num_features', 'eps', 'momentum', 'affine']
    settings.append('track_running_stats')
    expected = [getattr(layer, name) for name in settings]

    assert convert_batch_norm(layer, bn_size=16) is layer
    assert type(layer) is MegDetSyncBN
    assert layer.bn_size == 16
    assert layer.ranks_per_group is None
    assert [getattr(layer, name) for name in settings] == expected
    assert not layer.training
    after = tensors(layer)
    assert list(after) == list(before)
    for name, tensor in before.items():
        assert after[name] is tensor, name
    # Nothing more and nothing less than a layer built as such.
    built = vars(MegDetSyncBN(3)).keys()
    assert vars(layer).keys() - {'_plain_class'} == built


@pytest.mark.parametrize('kwargs', SETTINGS, ids=str)
@pytest.mark.parametrize('cls', SHAPES)
def test_round_trip_computes_the_same_bit_for_bit(cls, kwargs):
    layer = fill(cls(3, **kwargs).eval())
    before, settings = tensors(layer), vars(layer).keys()
    x = torch.randn(SHAPES[cls])
    expected = layer(x)
    convert_batch_norm(layer)
    assert torch.equal(layer(x), expected)
    assert revert_to_batch_norm(layer) is layer
    synced = issubclass(cls, nn.SyncBatchNorm)
    assert type(layer) is (nn.BatchNorm2d if synced else cls)
    assert torch.equal(layer(x), expected)
    assert vars(layer).keys() == settings - {'process_group'}
    for name, tensor in tensors(layer).items():
        assert before[name] is tensor, name
    # And it still trains, as a plain layer does.
    plain = type(layer)(3, **kwargs)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.train()(x), plain.train()(x))


def test_mmcv_mmsyncbn(gloo_of_one):
    layer = fill(MMSyncBN(3, eps=1e-3, momentum=0.2))
    before = tensors(layer)
    convert_batch_norm(layer)
    assert (layer.eps, layer.momentum) == (1e-3, 0.2)
    assert vars(layer).keys() == vars(MegDetSyncBN(3)).keys()
    for name, tensor in before.items():
        assert tensors(layer)[name] is tensor, name
    assert torch.isfinite(layer(torch.randn(4, 3, 2, 2))).all()


@pytest.fixture
def gloo_of_one(tmp_path):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def network(norm=nn.BatchNorm2d):
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm(4), nn.ReLU())


def test_an_optimizer_built_before_trains_the_converted_layer():
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    convert_batch_norm(model)
    model(torch.randn(2, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    assert (model[1].weight != 1).all()


def test_hooks_and_other_holders_of_a_layer_keep_it():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.BatchNorm2d(3)
            self.first, self.second = norm, nn.Sequential(norm)
            self.listed = [norm]  # not registered

    model, calls = Model(), []
    model.first.register_forward_hook(lambda *_: calls.append('hook'))
    convert_batch_norm(model)
    assert type(model.first) is MegDetSyncBN
    assert model.first is model.second[0] is model.listed[0]
    model.second(torch.randn(2, 3, 4, 4))
    assert calls == ['hook']


def test_what_is_no_batch_norm_is_left_alone():
    model = nn.Sequential(
        nn.InstanceNorm2d(3, affine=True), nn.GroupNorm(1, 3), nn.LayerNorm(3)
    )
    before = [type(m) for m in model.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        convert_batch_norm(model)
    assert [type(m) for m in model.modules()] == before


def test_layers_that_are_ours_keep_their_bn_size():
    model = nn.Sequential(MegDetSyncBN(3, bn_size=8), nn.BatchNorm2d(3))
    convert_batch_norm(model, bn_size=32)
    assert [layer.bn_size for layer in model] == [8, 32]


def test_subclass_with_other_defaults_is_converted():
    model = convert_batch_norm(network(OtherDefaults))
    assert type(model[1]) is MegDetSyncBN
    assert (model[1].eps, model[1].momentum) == (1e-3, 0.03)
    assert type(revert_to_batch_norm(model)[1]) is nn.BatchNorm2d


def patched(num_features):
    layer = nn.BatchNorm2d(num_features)
    layer.forward = lambda input: input
    return layer


@pytest.mark.parametrize(
    ('norm', 'message'),
    [
        (Activated, r'1 \(Activated: forward\)'),
        (StaysInEval, r'1 \(StaysInEval: train\)'),
        (patched, r'1 \(BatchNorm2d: forward\)'),
    ],
)
def test_subclass_with_behaviour_of_its_own_is_left_with_a_warning(
    norm, message
):
    model = nn.Sequential(*network(norm), nn.BatchNorm2d(4))
    cls = type(model[1])
    with pytest.warns(UserWarning, match=message):
        convert_batch_norm(model)
    assert type(model[1]) is cls
    assert type(model[3]) is MegDetSyncBN
    assert report_batch_norm(model).others == {'1': cls.__name__}


def test_lazy_layer_is_refused_and_nothing_changed():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.LazyBatchNorm2d())
    with pytest.raises(ConfigError, match='1 is a LazyBatchNorm2d that does'):
        convert_batch_norm(model)
    assert type(model[0]) is nn.BatchNorm2d
    model(torch.randn(2, 3, 4, 4))
    convert_batch_norm(model)
    assert [type(layer) for layer in model] == [MegDetSyncBN] * 2


@pytest.mark.parametrize('bn_size', [0, -4, 2.0, True])
def test_impossible_bn_size(bn_size):
    model = network()
    with pytest.raises(ValueError, match=f'bn_size={bn_size} must be'):
        convert_batch_norm(model, bn_size)
    assert type(model[1]) is nn.BatchNorm2d


def test_copies_of_a_converted_model_go_back_to_the_right_dimension():
    model = nn.ModuleList([nn.BatchNorm1d(3), nn.BatchNorm3d(3)])
    convert_batch_norm(model)
    assert 'plain' not in ''.join(model.state_dict())
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stored, weights_only=False),
    ):
        types = [type(layer) for layer in revert_to_batch_norm(twin)]
        assert types == [nn.BatchNorm1d, nn.BatchNorm3d]
    assert type(model[0]) is MegDetSyncBN  # untouched


def test_dims_for_layers_built_as_ours():
    parts = nn.ModuleList([MegDetSyncBN(3), MegDetSyncBN(3)])
    revert_to_batch_norm(parts[0], dims=1)
    revert_to_batch_norm(parts)
    assert [type(part) for part in parts] == [nn.BatchNorm1d, nn.BatchNorm2d]
    with pytest.raises(ValueError, match='expected 4D input'):
        parts[1](torch.randn(4, 3))  # a wrong one would not pass unnoticed
    with pytest.raises(ConfigError, match='dims=4 must be 1, 2 or 3'):
        revert_to_batch_norm(parts, dims=4)


def test_mmengine_takes_a_converted_model_for_no_sync_bn():
    """The Runner reverts every SyncBatchNorm where there is no launcher."""
    model = convert_batch_norm(network())
    assert type(revert_sync_batchnorm(model)[1]) is MegDetSyncBN
    model = revert_sync_batchnorm(network(nn.SyncBatchNorm))
    assert type(convert_batch_norm(model)[1]) is MegDetSyncBN  # BatchNormXd


@pytest.mark.parametrize(
    ('layer', 'met'), [('_BatchNorm', True), ('BatchNorm2d', False)]
)
def test_which_init_cfg_meets_a_converted_layer(layer, met):
    model = convert_batch_norm(network())
    initialize(model, dict(type='Constant', layer=layer, val=3))
    assert (model[1].weight == 3).all().item() is met


def test_report():
    model = ResNet(
        18, base_channels=4, frozen_stages=1, norm_cfg=dict(type='BN')
    )
    with torch.no_grad():
        convert_batch_norm(model)
    assert len(report_batch_norm(model).in_eval) == 5  # the frozen stages
    model.norm_eval = False
    model.train()
    for parameter in model.layer4[1].bn2.parameters():
        parameter.requires_grad_(False)
    model.extra = nn.BatchNorm1d(3)
    report = report_batch_norm(model)
    assert len(report.synced) == 15
    assert report.in_eval[0] == 'bn1'
    assert all(n.startswith('layer1.') for n in report.in_eval[1:])
    assert report.frozen == ['layer4.1.bn2']
    assert report.others == {'extra': 'BatchNorm1d'}
    model.norm_eval = True
    model.train()
    assert len(report_batch_norm(model).in_eval) == 20


def test_conv_module_of_mmcv_uses_the_converted_layer():
    block = fill(ConvModule(3, 4, 3, norm_cfg=dict(type='BN'))).eval()
    x = torch.randn(2, 3, 5, 5)
    expected = block(x)
    assert type(convert_batch_norm(block).norm) is MegDetSyncBN
    assert torch.equal(block(x), expected)
