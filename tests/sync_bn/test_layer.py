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
from torch.testing import assert_close
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


def assert_same(found, expected):
    assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize('plain_type', SHAPES)
@pytest.mark.parametrize('kwargs', SETTINGS, ids=str)
# As it is, or recomputed in backward, which leaves running statistics alone.
@pytest.mark.parametrize('use_reentrant', [None, True, False])
def test_without_a_process_group_it_is_batch_norm_bit_for_bit(
    plain_type, kwargs, use_reentrant
):
    # With a size that nobody has resolved.
    ours = MegDetSyncBN(3, bn_size=32, **kwargs)
    plain = plain_type(3, **kwargs)
    for parameter in ours.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    plain.load_state_dict(ours.state_dict())
    for training in (True, True, False):
        results = []
        x = torch.randn(SHAPES[plain_type]) * 3 + 2
        for layer in (ours, plain):
            layer.train(training).zero_grad()
            leaf = x.clone().requires_grad_()
            if layer is plain or use_reentrant is None:
                y = layer(leaf)
            else:
                y = checkpoint(layer, leaf, use_reentrant=use_reentrant)
            y.square().sum().backward()
            grads = [parameter.grad for parameter in layer.parameters()]
            results.append((y, leaf.grad, grads, layer.state_dict()))
        assert_same(*results)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('without', [(), ('bias',), ('weight', 'bias')])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_an_empty_batch_passes_through(training, without, dtype):
    layer = MegDetSyncBN(3).train(training)
    for name in without:
        setattr(layer, name, None)
    before = copy.deepcopy(layer.state_dict())
    x = torch.empty(0, 3, 4, 4, dtype=dtype, requires_grad=True)
    y = layer(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    y.sum().backward()
    assert x.grad.shape == x.shape
    for parameter in layer.parameters():
        assert parameter.grad.tolist() == [0.0] * 3
    assert_same(layer.state_dict(), before)


def test_wrong_shapes_are_refused():
    layer = MegDetSyncBN(3)
    with pytest.raises(ValueError, match=r'shape \(2, 4, 5, 5\).*\(N, 3'):
        layer(torch.zeros(2, 4, 5, 5))
    with pytest.raises(ValueError, match=r'shape \(3,\)'):
        layer(torch.zeros(3))
    with pytest.raises(ValueError, match='more than 1 value per channel'):
        layer(torch.zeros(1, 3))


def test_a_citizen_of_openmmlab():
    name, layer = build_norm_layer(dict(type='MegDetSyncBN'), 8, postfix=1)
    assert name == 'bn1'
    assert type(layer) is MODELS.get('mmdet.MegDetSyncBN') is MegDetSyncBN
    # Born as BatchNorm is, and loads its keys.
    plain = nn.BatchNorm2d(8).state_dict()
    assert_same(layer.state_dict(), plain)
    layer.load_state_dict(plain)
    # DDP refuses nn.SyncBatchNorm on CPUs, and MMEngine replaces it.
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    assert not isinstance(layer, nn.SyncBatchNorm)
    assert revert_sync_batchnorm(nn.Sequential(layer))[0] is layer
    layer.observer = lambda observation: None  # cannot be pickled
    layer(torch.randn(2, 8, 4, 4))
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(clone) is MegDetSyncBN
        assert clone.observer is None
        assert_same(clone.state_dict(), layer.state_dict())


def test_a_refused_size_changes_nothing():
    with pytest.raises(ConfigError, match=r'bn_size=2\.0 must be'):
        MegDetSyncBN(4, bn_size=2.0)
    model = nn.Sequential(MegDetSyncBN(3), MegDetSyncBN(3, bn_size=4))
    for images, bn_size, refusal in (
        (3, 'layers', 'nearest BN sizes are 3;'),
        (0, 'layers', '_gpu=0 must be'),
        (4, 0, 'bn_size=0 must be'),
    ):
        with pytest.raises(ConfigError, match=refusal):
            resolve_bn_groups(model, images, bn_size)
    assert [layer.ranks_per_group for layer in model] == [None, None]
    assert resolve_bn_groups(model, images_per_gpu=4) == {1: 2}
    assert [layer.bn_size for layer in model] == [None, 4]
