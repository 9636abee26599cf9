# Copyright (c) mmdet_megdet contributors. All rights reserved.
import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.optim import ConstantLR, MultiStepLR, OptimWrapper
from mmengine.structures import InstanceData

from mmdet_megdet.upstream.mmengine_names import (
    draw_on_every_rank,
    schedulers_of,
)


def make_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_the_schedulers_of_an_optimizer():
    optimizer = make_optimizer()
    wrapper = OptimWrapper(optimizer)
    found = {MultiStepLR(wrapper, [3]), ConstantLR(optimizer)}
    elsewhere = ConstantLR(make_optimizer())
    for given in (optimizer, wrapper):
        assert set(schedulers_of(given)) == found
    assert elsewhere not in found


@pytest.mark.parametrize('every_rank', [False, True])
def test_drawing_on_another_rank(tmp_path, monkeypatch, every_rank):
    monkeypatch.setattr('mmengine.dist.utils.is_main_process', lambda: False)
    visualizer = DetLocalVisualizer(vis_backends=None)
    if every_rank:
        draw_on_every_rank(visualizer)
    visualizer.dataset_meta = dict(classes=('box',), palette=[(255, 0, 0)])
    sample = DetDataSample()
    sample.pred_instances = InstanceData(
        bboxes=torch.tensor([[8.0, 8.0, 40.0, 24.0]]),
        scores=torch.ones(1),
        labels=torch.zeros(1, dtype=torch.int64),
    )
    path = tmp_path / 'drawn.png'
    image = np.zeros((32, 48, 3), np.uint8)
    visualizer.add_datasample(
        'image', image, sample, draw_gt=False, out_file=str(path)
    )
    assert path.exists() is every_rank
    if every_rank:
        drawn = cv2.imread(str(path))
        assert drawn.shape == image.shape
        # The box's edge is red, in OpenCV's order.
        assert drawn[16, 8, 2] > 100
