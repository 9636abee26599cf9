# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Evaluation has a known answer: COCO's published sample results."""

import json
from collections import defaultdict

import torch
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.evaluator import Evaluator

from tests.distributed.ranks import run_ranks

# What pycocotools' demo prints for these files.
EXPECTED = {
    'coco/bbox_mAP': 0.505,
    'coco/bbox_mAP_50': 0.697,
    'coco/bbox_mAP_75': 0.573,
    'coco/bbox_mAP_s': 0.586,
    'coco/bbox_mAP_m': 0.519,
    'coco/bbox_mAP_l': 0.501,
    'coco/segm_mAP': 0.320,
    'coco/segm_mAP_50': 0.562,
    'coco/segm_mAP_75': 0.299,
    'coco/segm_mAP_s': 0.387,
    'coco/segm_mAP_m': 0.310,
    'coco/segm_mAP_l': 0.327,
}


def predictions(folder):
    """The published results as a detector would hand them over."""
    truth = json.loads((folder / 'instances_val2014_100.json').read_text())
    boxes, masks = (
        json.loads(
            (
                folder / f'instances_val2014_fake{kind}100_results.json'
            ).read_text()
        )
        for kind in ('bbox', 'segm')
    )
    label = {c['id']: i for i, c in enumerate(truth['categories'])}
    of_image = defaultdict(list)
    for box, mask in zip(boxes, masks, strict=True):
        for key in ('image_id', 'category_id', 'score'):
            assert box[key] == mask[key]
        of_image[box['image_id']].append((box, mask['segmentation']))
    samples = []
    for image in truth['images']:
        found = of_image[image['id']]
        xywh = torch.tensor(
            [box['bbox'] for box, _ in found], dtype=torch.float64
        ).view(-1, 4)
        instances = dict(
            bboxes=torch.cat([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1),
            scores=torch.tensor(
                [box['score'] for box, _ in found], dtype=torch.float64
            ),
            labels=torch.tensor(
                [label[box['category_id']] for box, _ in found],
                dtype=torch.int64,
            ),
            masks=[mask for _, mask in found],
        )
        samples.append(
            dict(
                img_id=image['id'],
                ori_shape=(image['height'], image['width']),
                pred_instances=instances,
            )
        )
    return samples


def evaluate(rank, world_size, config, folder):
    cfg = Config.fromfile(config)
    metric = cfg.val_evaluator
    metric.ann_file = str(folder / 'instances_val2014_100.json')
    evaluator = Evaluator(dict(metric, type='mmdet.CocoMetric'))
    evaluator.dataset_meta = CocoDataset.METAINFO
    samples = predictions(folder)
    own = samples[rank::world_size]
    evaluator.process(own)
    return len(samples), evaluator.evaluate(len(samples))


def test_published_results_get_their_published_ap(root, shared_data):
    results = run_ranks(
        evaluate,
        2,
        root / 'configs/megdet/r50_fpn_256bs.py',
        shared_data / 'cocoeval',
    )
    for images, metrics in results:
        assert images == 100
        assert {k: round(metrics[k], 3) for k in EXPECTED} == EXPECTED
