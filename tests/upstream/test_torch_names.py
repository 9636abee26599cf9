# Copyright (c) mmdet_megdet contributors. All rights reserved.
import torch

from mmdet_megdet.upstream.torch_names import copy_all, lerp_all, maximum_all


def test_they_write_in_place():
    a, b = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    for write, expected in (
        (lambda: lerp_all([a], [b], 0.5), [2.0, 3.0]),
        (lambda: maximum_all([a], [b]), [3.0, 3.0]),
        (lambda: copy_all([a], [b]), [3.0, 1.0]),
    ):
        write()
        assert a.tolist() == expected


def test_no_tensors_are_nothing_to_do():
    copy_all([], [])
    lerp_all([], [], 0.5)
    maximum_all([], [])
