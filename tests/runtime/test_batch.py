# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import torch
from mmdet.structures import DetDataSample

from mmdet_megdet.runtime import image_names


def test_image_names():
    samples = [
        DetDataSample(metainfo=dict(img_id=3, img_path='a.jpg')),
        DetDataSample(metainfo=dict(img_id='x')),
        DetDataSample(),
    ]
    batch = dict(inputs=[torch.ones(2)], data_samples=samples)
    assert image_names(batch) == ['3 (a.jpg)', 'x']
    # Of several branches.
    assert image_names(dict(a=batch, b=batch)) == ['3 (a.jpg)', 'x'] * 2
    assert image_names((torch.ones(2), 'text')) == []
