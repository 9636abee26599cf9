# Copyright (c) mmdet_megdet contributors. All rights reserved.
import torch
from mmengine.optim import ConstantLR, MultiStepLR, OptimWrapper

from mmdet_megdet.upstream.mmengine_names import schedulers_of


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
