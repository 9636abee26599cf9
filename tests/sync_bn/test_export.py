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

from mmdet_megdet.sync_bn import report_batch_norm, revert_to_batch_norm


def detector_base():
    """A trained backbone with FPN, as a config would build it."""
    torch.manual_seed(0)
    norm = dict(type='MegDetSyncBN')
    model = nn.Sequential(
        ResNet(18, base_channels=8, norm_cfg=norm, norm_eval=False),
        FPN([8, 16, 32, 64], 8, 5, norm_cfg=norm),
    )
    for _ in range(3):
        model(torch.randn(4, 3, 64, 64) * 2 + 1)
    return model.eval()


def float64(model, images):
    with torch.no_grad():
        return copy.deepcopy(model).double()(images.double())


def assert_as_exact_as_float32(outputs, model, images):
    """Another float32 evaluation of ``model`` stands before its outputs.

    It rounds as often as PyTorch's own, but in another order and with BN
    folded into the convolutions' weights, which adds a rounding to each. So
    its error is of the size of PyTorch's; 8 times that is allowed. Where BN
    is wrong, errors are 10^4 times larger than that.
    """
    with torch.no_grad():
        own = model(images)
    for output, mine, true in zip(
        outputs, own, float64(model, images), strict=True
    ):
        allowed = 8 * (mine - true).abs().max()
        assert allowed < 2e-5 * true.abs().max()
        assert (output - true).abs().max() <= allowed


# From 2.15 on the older exporter says that it is deprecated.
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('dynamo', [True, False])
def test_reverted_backbone_with_fpn_exports_to_onnx(dynamo, tmp_path):
    if dynamo and torch.__version__ < '2.7':
        pytest.skip("torch 2.6's exporter cannot translate BatchNorm")
    model = revert_to_batch_norm(detector_base())
    assert not report_batch_norm(model).synced
    images = torch.randn(2, 3, 64, 64)
    torch.onnx.export(
        model,
        (images,),
        tmp_path / 'base.onnx',
        input_names=['images'],
        dynamo=dynamo,
    )
    session = onnxruntime.InferenceSession(
        tmp_path / 'base.onnx', providers=['CPUExecutionProvider']
    )
    outputs = session.run(None, {'images': images.numpy()})
    assert len(outputs) == 5
    assert_as_exact_as_float32(map(torch.from_numpy, outputs), model, images)


@pytest.mark.parametrize('revert', [False, True])
def test_fuse_conv_bn(revert):
    model = detector_base()
    images = torch.randn(2, 3, 64, 64)
    fused = copy.deepcopy(model)
    if revert:
        revert_to_batch_norm(fused)
    fused = fuse_conv_bn(fused)
    assert not any('BatchNorm' in n or 'BN' in n for n in names(fused))
    with torch.no_grad():
        outputs = fused(images)
    assert_as_exact_as_float32(outputs, model, images)


def names(model):
    return [type(module).__name__ for module in model.modules()]
