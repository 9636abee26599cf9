# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A trained backbone with FPN leaves this package: ONNX, folded BatchNorm."""

from __future__ import annotations

import copy

import onnxruntime
import pytest
import torch
from mmcv.cnn import fuse_conv_bn
from mmdet.models import FPN, ResNet
from torch import nn

from mmdet_megdet.sync_bn import revert_to_batch_norm


@pytest.fixture
def model():
    """A trained backbone with FPN, as a config would build it."""
    torch.manual_seed(0)
    norm = dict(type='MegDetSyncBN')
    model = nn.Sequential(
        ResNet(18, base_channels=8, norm_cfg=norm, norm_eval=False),
        FPN([8, 16, 32, 64], 8, 5, norm_cfg=norm),
    )
    for _ in range(3):
        model(torch.randn(4, 3, 64, 64) * 2 + 1)
    return model.eval().requires_grad_(False)


def assert_as_exact_as_float32(outputs, model, images):
    """Another float32 evaluation of ``model`` stands before its outputs.

    It rounds as often as PyTorch's own, but in another order and with BN
    folded into the convolutions' weights, which adds a rounding to each. So
    its error is of the size of PyTorch's; 8 times that is allowed. Where BN
    is wrong, errors are 10^4 times larger than that.
    """
    exact = copy.deepcopy(model).double()(images.double())
    for output, mine, true in zip(outputs, model(images), exact, strict=True):
        allowed = 8 * (mine - true).abs().max()
        assert allowed < 2e-5 * true.abs().max()
        assert (output - true).abs().max() <= allowed


def test_reverted_backbone_with_fpn_exports_to_onnx(model, tmp_path):
    if torch.__version__ < '2.7':
        pytest.skip("torch 2.6's exporter cannot translate BatchNorm")
    revert_to_batch_norm(model)
    images, path = torch.randn(2, 3, 64, 64), tmp_path / 'base.onnx'
    torch.onnx.export(
        model, (images,), path, input_names=['images'], dynamo=True
    )
    session = onnxruntime.InferenceSession(
        path, providers=['CPUExecutionProvider']
    )
    outputs = session.run(None, {'images': images.numpy()})
    assert_as_exact_as_float32(map(torch.from_numpy, outputs), model, images)


def test_fuse_conv_bn(model):
    images = torch.randn(2, 3, 64, 64)
    fused = fuse_conv_bn(copy.deepcopy(model))
    assert not any('BN' in type(m).__name__ for m in fused.modules())
    assert_as_exact_as_float32(fused(images), model, images)
