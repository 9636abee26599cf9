# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Conversion of BatchNorm to MegDetSyncBN and back, in one process."""

import copy
import pickle

import pytest
import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm as MMCVSyncBN
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    convert_batch_norm,
    revert_to_batch_norm,
)
from tests.sync_bn.test_layer import SETTINGS

SHAPES = {
    nn.BatchNorm1d: (6, 3, 5),
    nn.BatchNorm2d: (6, 3, 5, 4),
    nn.BatchNorm3d: (2, 3, 4, 2, 3),
    nn.SyncBatchNorm: (6, 3, 5, 4),
    MMCVSyncBN: (6, 3, 5, 4),
}


class OtherDefaults(nn.BatchNorm2d):
    """A subclass that normalises as its base does."""

    def __init__(self, num_features):
        super().__init__(num_features, eps=1e-3, momentum=0.03)

    def _check_input_dim(self, input):
        assert input.dim() == 4


class Activated(nn.BatchNorm2d):
    """A subclass that does more."""

    def forward(self, input):
        return super().forward(input).relu()


@pytest.mark.parametrize('kwargs', SETTINGS, ids=str)
@pytest.mark.parametrize('cls', SHAPES)
def test_a_layer_keeps_all_it_has_there_and_back(cls, kwargs):
    layer = cls(3, **kwargs).eval()
    for value in layer.state_dict().values():
        value.copy_(torch.rand_like(value.double()) + 0.5)
    if layer.affine:
        layer.weight.requires_grad_(False)
    before = layer.state_dict(keep_vars=True)
    attributes = copy.copy(vars(layer))
    x = torch.randn(SHAPES[cls])
    expected = layer(x)

    assert convert_batch_norm(layer, bn_size=16) is layer
    assert type(layer) is MegDetSyncBN
    assert (layer.bn_size, layer.ranks_per_group) == (16, None)
    # Nothing more and nothing less than a layer built as such.
    built = vars(MegDetSyncBN(3)).keys()
    assert vars(layer).keys() - {'_plain_class'} == built
    assert torch.equal(layer(x), expected)

    assert revert_to_batch_norm(layer) is layer
    synced = issubclass(cls, nn.SyncBatchNorm)
    assert type(layer) is (nn.BatchNorm2d if synced else cls)
    attributes.pop('process_group', None)
    assert vars(layer) == attributes
    after = layer.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is tensor for name, tensor in before.items())
    assert torch.equal(layer(x), expected)


def test_what_becomes_of_each_layer():
    patched = nn.BatchNorm2d(3)
    patched.forward = lambda input: input
    alone = [nn.InstanceNorm2d(3, affine=True), nn.GroupNorm(1, 3)]
    own_behaviour = [Activated(3), patched]
    plain = [
        nn.BatchNorm2d(3),
        OtherDefaults(3),
        # What MMEngine makes of SyncBatchNorm where there is no launcher.
        revert_sync_batchnorm(nn.SyncBatchNorm(3)),
    ]
    ours = MegDetSyncBN(3, bn_size=8)
    model = nn.ModuleList([*alone, *own_behaviour, ours, *plain])
    kinds = [type(layer) for layer in model]
    said = r': 2 \(Activated: forward\); 3 \(BatchNorm2d: forward\)\. Repl'
    with pytest.warns(UserWarning, match=said):
        convert_batch_norm(model, bn_size=32)
    assert [type(x) for x in model] == kinds[:4] + [MegDetSyncBN] * 4
    assert [layer.bn_size for layer in model[4:]] == [8, 32, 32, 32]
    assert (plain[1].eps, plain[1].momentum) == (1e-3, 0.03)
    assert type(revert_to_batch_norm(model)[6]) is nn.BatchNorm2d


def test_a_refused_layer_changes_nothing():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.LazyBatchNorm2d())
    with pytest.raises(ConfigError, match='1 is a LazyBatchNorm2d that does'):
        convert_batch_norm(model)
    model[1] = nn.SyncBatchNorm(3, process_group=object())
    with pytest.raises(ConfigError, match='1 is a SyncBatchNorm that sync'):
        convert_batch_norm(model)
    assert type(model[0]) is nn.BatchNorm2d
    convert_batch_norm(model, bn_size=8)
    copied = copy.deepcopy(model)  # a group kept somewhere would be in it
    assert [type(layer) for layer in copied] == [MegDetSyncBN] * 2


def test_copies_of_a_converted_model_go_back_to_the_right_dimension():
    model = nn.ModuleList([nn.BatchNorm1d(3), nn.BatchNorm3d(3)])
    convert_batch_norm(model).append(MegDetSyncBN(3))
    assert 'plain' not in ''.join(model.state_dict())
    for twin in copy.deepcopy(model), pickle.loads(pickle.dumps(model)):
        types = [type(layer) for layer in revert_to_batch_norm(twin, dims=1)]
        assert types == [nn.BatchNorm1d, nn.BatchNorm3d, nn.BatchNorm1d]
    assert type(model[0]) is MegDetSyncBN  # untouched
    with pytest.raises(ConfigError, match='dims=4 must be 1, 2 or 3'):
        revert_to_batch_norm(model, dims=4)
