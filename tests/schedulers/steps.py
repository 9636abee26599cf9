# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Training of nothing, step by step as the Runner does it."""

import io

import torch
from mmengine.optim import OptimWrapper


def make_optimizer(*lrs):
    groups = [
        dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=lr) for lr in lrs
    ]
    return torch.optim.SGD(groups, lr=lrs[0], momentum=0.9)


def make_wrapper(*lrs):
    return OptimWrapper(make_optimizer(*lrs))


def read(optimizer, key='lr'):
    bare = getattr(optimizer, 'optimizer', optimizer)
    return [group[key] for group in bare.param_groups]


def train(optimizer, schedulers, iterations, key='lr', used=None):
    """Return the values that each of the iterations uses."""
    used = [] if used is None else used
    for _ in range(iterations):
        used.append(read(optimizer, key))
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return used


def round_trip(optimizer, schedulers):
    """Return what torch's safe loading makes of a checkpoint."""
    file = io.BytesIO()
    states = [scheduler.state_dict() for scheduler in schedulers]
    torch.save((optimizer.state_dict(), states), file)
    file.seek(0)
    return torch.load(file, weights_only=True)
