# Copyright (c) mmdet_megdet contributors. All rights reserved.
import torch
from torch import nn

from mmdet_megdet.noise import coupled_ranks, parts_of
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_threads


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
    bbox = {'roi_head.bbox_head': 6}
    assert sizes == dict(model=3, backbone=6, rpn_head=12, **bbox)


class SomeSyncBatchNorm(nn.BatchNorm2d):
    """Another library's, over all ranks."""


def ranks_of(rank, world_size, kinds):
    model = nn.Sequential(*(kind(2) for kind in kinds))
    model[0].ranks_per_group = 2
    return coupled_ranks(model), coupled_ranks(model.eval())


def test_ranks_that_batch_norm_couples():
    both = [MegDetSyncBN, SomeSyncBatchNorm]
    for kinds, ranks in ((both[:1], 2), (both, 4)):
        assert run_threads(ranks_of, 4, kinds) == [(ranks, 1)] * 4
