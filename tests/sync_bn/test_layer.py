# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layer in one process: plain BatchNorm, and a citizen of OpenMMLab."""

import copy
import pickle

import pytest
import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups

SHAPES = {
    nn.BatchNorm1d: (6, 3),
    nn.BatchNorm2d: (6, 3, 5, 4),
    nn.BatchNorm3d: (2, 3, 4, 2, 3),
}
SETTINGS = [
    {},
    dict(eps=1e-3, momentum=0.01),
    dict(momentum=None),
    dict(affine=False),
    dict(track_running_stats=False),
]


def twins(plain_type=nn.BatchNorm2d, **kwargs):
    """Ours, with a size that nobody has resolved, and PyTorch's, alike."""
    ours = MegDetSyncBN(3, bn_size=32, **kwargs)
    plain = plain_type(3, **kwargs)
    if kwargs.get('affine', True):
        with torch.no_grad():
            ours.weight.uniform_(0.5, 2)
            ours.bias.uniform_(-1, 1)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def assert_same_state(module, other):
    for key, value in other.state_dict().items():
        assert torch.equal(module.state_dict()[key], value), key


@pytest.mark.parametrize('plain_type', SHAPES)
@pytest.mark.parametrize('kwargs', SETTINGS, ids=str)
def test_without_a_process_group_it_is_batch_norm_bit_for_bit(
    plain_type, kwargs
):
    ours, plain = twins(plain_type, **kwargs)
    for training in (True, True, False):
        ours.train(training)
        plain.train(training)
        x = torch.randn(SHAPES[plain_type]) * 3 + 2
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [m(v) for m, v in zip((ours, plain), inputs, strict=True)]
        assert torch.equal(*outputs)
        for output in outputs:
            output.square().sum().backward()
        assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert_same_state(ours, plain)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('without', [(), ('bias',), ('weight', 'bias')])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_an_empty_batch_passes_through(training, without, dtype):
    layer = MegDetSyncBN(3).train(training)
    for name in without:
        setattr(layer, name, None)
    before = copy.deepcopy(layer)
    x = torch.empty(0, 3, 4, 4, dtype=dtype, requires_grad=True)
    y = layer(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    y.sum().backward()
    assert x.grad.shape == x.shape
    for parameter in layer.parameters():
        assert parameter.grad.tolist() == [0.0] * 3
    assert_same_state(layer, before)


def test_wrong_shapes_are_refused():
    layer = MegDetSyncBN(3)
    with pytest.raises(ValueError, match=r'shape \(2, 4, 5, 5\).*\(N, 3'):
        layer(torch.zeros(2, 4, 5, 5))
    with pytest.raises(ValueError, match=r'shape \(3,\)'):
        layer(torch.zeros(3))
    with pytest.raises(ValueError, match='more than 1 value per channel'):
        layer(torch.zeros(1, 3))


@pytest.mark.parametrize('use_reentrant', [True, False])
@pytest.mark.parametrize('momentum', [0.1, None])
def test_recomputation_leaves_running_statistics_alone(
    use_reentrant, momentum
):
    recomputed, plain = twins(momentum=momentum)
    x = torch.randn(4, 3, 5, 5)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    y = checkpoint(recomputed, inputs[0], use_reentrant=use_reentrant)
    y.square().sum().backward()
    plain(inputs[1]).square().sum().backward()
    assert_same_state(recomputed, plain)
    # One forward saw running statistics and the other did not, but training
    # output does not depend on them.
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert torch.equal(recomputed.weight.grad, plain.weight.grad)


def test_pretrained_keys_load_and_base_classes_hold():
    name, layer = build_norm_layer(dict(type='MegDetSyncBN'), 8, postfix=1)
    assert name == 'bn1'
    assert type(layer) is MegDetSyncBN
    assert MODELS.get('mmdet.MegDetSyncBN') is MegDetSyncBN
    # Born as BatchNorm is.
    plain = nn.BatchNorm2d(8).state_dict()
    assert list(layer.state_dict()) == list(plain)
    assert all(torch.equal(layer.state_dict()[k], plain[k]) for k in plain)
    layer.load_state_dict(plain)
    # DDP refuses nn.SyncBatchNorm on CPUs, and MMEngine replaces it.
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    assert not isinstance(layer, nn.SyncBatchNorm)
    assert revert_sync_batchnorm(nn.Sequential(layer))[0] is layer


def test_copies_and_pickles():
    layer, _ = twins()
    layer.observer = lambda observation: None  # cannot be pickled
    layer(torch.randn(2, 3, 4, 4))
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(clone) is MegDetSyncBN
        assert clone.observer is None
        assert_same_state(clone, layer)


@pytest.mark.parametrize('bn_size', [0, -4, 2.0, '32', True])
def test_a_size_that_is_no_number_of_images(bn_size):
    with pytest.raises(ConfigError, match=f'bn_size={bn_size!r} must be'):
        MegDetSyncBN(4, bn_size=bn_size)


def test_resolving_a_model_in_one_process():
    model = nn.Sequential(
        MegDetSyncBN(3), nn.BatchNorm2d(3), MegDetSyncBN(3, bn_size=4)
    )
    assert resolve_bn_groups(model, images_per_gpu=4) == {1: 2}
    assert [m.bn_size for m in (model[0], model[2])] == [None, 4]
    assert resolve_bn_groups(model, 2, bn_size=None) == {1: 2}
    assert [m.bn_size for m in (model[0], model[2])] == [None, None]


def test_a_refused_size_changes_nothing():
    model = nn.Sequential(MegDetSyncBN(3), MegDetSyncBN(3, bn_size=32))
    with pytest.raises(ConfigError, match='nearest BN sizes are 4;'):
        resolve_bn_groups(model, images_per_gpu=4)
    assert [m.ranks_per_group for m in model] == [None, None]
    with pytest.raises(ConfigError, match='images_per_gpu=0 must be'):
        resolve_bn_groups(model, images_per_gpu=0)
