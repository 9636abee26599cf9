# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A trained backbone with FPN leaves this package: ONNX, folded BatchNorm."""

import copy

import onnxruntime
import pytest
import torch
from mmcv.cnn import fuse_conv_bn
from mmdet.models import FPN, ResNet
from torch import nn

from mmdet_megdet.sync_bn import revert_to_batch_norm


def export_to_onnx(model, images, tmp_path):
    if torch.__version__ < '2.7':
        pytest.skip("torch 2.6's exporter cannot translate BatchNorm")
    path = tmp_path / 'model.onnx'
    torch.onnx.export(
        revert_to_batch_norm(model),
        (images,),
        path,
        input_names=['images'],
        dynamo=True,
    )
    session = onnxruntime.InferenceSession(
        path, providers=['CPUExecutionProvider']
    )
    outputs = session.run(None, {'images': images.numpy()})
    return map(torch.from_numpy, outputs)


def fold(model, images, _):
    fused = fuse_conv_bn(model)
    assert not any('BN' in type(m).__name__ for m in fused.modules())
    return fused(images)


@pytest.mark.parametrize('leave', [export_to_onnx, fold])
def test_another_evaluation_is_as_exact(leave, tmp_path):
    """It rounds as often as PyTorch's own, but in another order.

    BN folded into the convolutions' weights adds a rounding to each. So its
    error is of the size of PyTorch's; 8 times that is allowed. Where BN is
    wrong, errors are 10^4 times larger than that.
    """
    torch.manual_seed(0)
    norm = dict(type='MegDetSyncBN')
    model = nn.Sequential(
        ResNet(18, base_channels=8, norm_cfg=norm, norm_eval=False),
        FPN([8, 16, 32, 64], 8, 5, norm_cfg=norm),
    )
    for _ in range(3):
        model(torch.randn(4, 3, 64, 64) * 2 + 1)
    model.eval().requires_grad_(False)
    images = torch.randn(2, 3, 64, 64)
    exact = copy.deepcopy(model).double()(images.double())
    ours = model(images)
    outputs = leave(model, images, tmp_path)
    for output, mine, true in zip(outputs, ours, exact, strict=True):
        allowed = 8 * (mine - true).abs().max()
        assert allowed < 2e-5 * true.abs().max()
        assert (output - true).abs().max() <= allowed
