# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
import torch
from torch import nn

from mmdet_megdet.noise import coupled_ranks, parts_of
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.threads import run_threads


def test_parts_of_a_detector():
    model = nn.Module()
    model.backbone = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.neck = nn.Linear(2, 2).requires_grad_(False)
    model.rpn_head = nn.Sequential(nn.Linear(2, 2))
    model.roi_head = nn.Module()
    # Cascade R-CNN's.
    model.roi_head.bbox_head = nn.ModuleList([nn.Linear(2, 2)] * 2)
    model.roi_head.mask_head = nn.Linear(2, 2)
    model.level_embed = nn.Parameter(torch.zeros(3))
    model.backbone[0].requires_grad_(False)
    model.rpn_head.shared = model.roi_head.mask_head
    found = parts_of(model)
    sizes = {name: sum(p.numel() for p in ps) for name, ps in found.items()}
    assert sizes == {
        'model': 3,
        'backbone': 6,
        'rpn_head': 12,
        'roi_head.bbox_head': 6,
    }


class SomeSyncBatchNorm(nn.BatchNorm2d):
    """Another library's."""


def ranks_of(rank, world_size, sizes, foreign, training):
    layers = [MegDetSyncBN(2) for _ in sizes]
    for layer, size in zip(layers, sizes, strict=True):
        layer.ranks_per_group = size
    if foreign:
        layers.append(SomeSyncBatchNorm(2))
    return coupled_ranks(nn.Sequential(*layers).train(training))


@pytest.mark.parametrize(
    ('sizes', 'foreign', 'training', 'expected'),
    [
        ((2, 3), False, True, 6),
        ((2, None), False, True, 12),
        ((2,), True, True, 12),
        ((2, None), True, False, 1),
    ],
)
def test_ranks_that_batch_norm_couples(sizes, foreign, training, expected):
    found = run_threads(ranks_of, 12, sizes, foreign, training)
    assert found == [expected] * 12
