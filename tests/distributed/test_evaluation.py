# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Evaluation has a known answer: COCO's published sample results."""

import json

import pytest
import torch
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.evaluator import Evaluator

from tests.distributed.ranks import run_ranks
from tests.tools.command import ROOT

# Public data that lies beside the repository, not in it.
DATA = ROOT.parent / 'shared' / 'data' / 'cocoeval'
# What pycocotools' demo prints for these files: AP, at 0.5, at 0.75, and of
# small, medium and large objects; of boxes, then of masks.
EXPECTED = [0.505, 0.697, 0.573, 0.586, 0.519, 0.501]
EXPECTED += [0.320, 0.562, 0.299, 0.387, 0.310, 0.327]


def predictions():
    """The published results as a detector would hand them over."""
    truth, boxes, masks = (
        json.loads((DATA / f'instances_val2014_{name}.json').read_text())
        for name in ('100', 'fakebbox100_results', 'fakesegm100_results')
    )
    label = {c['id']: i for i, c in enumerate(truth['categories'])}
    for image in truth['images']:
        number, shape = image['id'], (image['height'], image['width'])
        found = [box for box in boxes if box['image_id'] == number]
        corners = torch.tensor([box['bbox'] for box in found]).view(-1, 4)
        corners[:, 2:] += corners[:, :2]
        instances = dict(
            bboxes=corners,
            scores=torch.tensor([box['score'] for box in found]),
            labels=torch.tensor([label[box['category_id']] for box in found]),
            masks=[
                m['segmentation'] for m in masks if m['image_id'] == number
            ],
        )
        yield dict(img_id=number, ori_shape=shape, pred_instances=instances)


def evaluate(rank, world_size):
    torch.set_default_dtype(torch.float64)
    config = Config.fromfile(ROOT / 'configs/megdet/r50_fpn_256bs.py')
    metric = config.val_evaluator
    metric.ann_file = str(DATA / 'instances_val2014_100.json')
    evaluator = Evaluator(dict(metric, type='mmdet.CocoMetric'))
    evaluator.dataset_meta = CocoDataset.METAINFO
    samples = list(predictions())
    evaluator.process(samples[rank::world_size])
    return len(samples), evaluator.evaluate(len(samples))


@pytest.mark.skipif(not DATA.is_dir(), reason=f'needs {DATA}')
def test_published_results_get_their_published_ap():
    for images, metrics in run_ranks(evaluate, 2):
        assert images == 100
        assert [round(value, 3) for value in metrics.values()] == EXPECTED
