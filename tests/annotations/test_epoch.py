# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What is counted of a data set, against the data set that mmdet builds."""

import math
import random
import sys

import numpy as np
import pytest
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmdet_megdet.annotations import judge, training_epoch
from mmdet_megdet.annotations.checks import instances_of
from mmdet_megdet.annotations.reading import read_annotations
from tests.annotations.configs import config_of, content_of, write
from tests.tools.checks.findings import levels
from tests.tools.command import ROOT, TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import data, training
from checks.report import PASS

RECIPE = ROOT / 'configs' / 'megdet' / 'r50_fpn_256bs.py'


def build(cfg):
    init_default_scope('mmdet')
    return DATASETS.build(cfg.train_dataloader.dataset)


def random_content(draw: random.Random) -> dict:
    """Return images and boxes of all kinds that are not malformed."""
    content = content_of(30)
    content['categories'].append(dict(id=11, name='cone'))
    for image in content['images']:
        image.update(width=draw.randint(8, 60), height=draw.randint(8, 60))
    for annotation in content['annotations']:
        annotation.update(
            image_id=draw.randrange(32),
            category_id=draw.choice([3, 3, 7, 11, 12]),
            bbox=draw.choices([-9, -1, 0, 7.5, 40], k=2)
            + draw.choices([0, 0.9, 1, 7.25, 30], k=2),
            area=draw.choice([0, -1, 5, 9.5]),
            iscrowd=draw.choice([0, 0, 1]),
            ignore=draw.choice([0, 0, 0, 1]),
        )
    return content


@pytest.mark.parametrize('seed', range(12))
def test_counts_as_mmdet_does(tmp_path, seed):
    """Images in their order, and the objects in each."""
    draw = random.Random(seed)
    # With NaN in it a file is read as pycocotools does.
    content = random_content(draw) | dict(info=(0, math.nan)[seed % 2])
    write(tmp_path, train=content, val=content_of())
    cfg = config_of(
        tmp_path,
        train_dataloader__dataset__filter_cfg=dict(
            filter_empty_gt=draw.random() < 0.5,
            min_size=draw.choice([0, 16, 32]),
        ),
        train_dataloader__dataset__indices=draw.choice([None, 7, -4, [3, 1]]),
        train_dataloader__dataset__test_mode=draw.random() < 0.2,
    )
    judgement = judge(cfg)
    one = judgement.data_sets[0]
    dataset = build(cfg)
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    assert one.ids == [info['img_id'] for info in infos]
    table = read_annotations(one.use.path, False)
    found = instances_of(table, one.use.classes)
    kept = found.kept & np.isin(table.image_of, one.ids)
    labels = [i['bbox_label'] for info in infos for i in info['instances']]
    assert sorted(found.label[kept].tolist()) == sorted(labels)
    portraits = {info['width'] < info['height'] for info in infos}
    epoch = len(infos), len(portraits) == 2
    assert training_epoch(cfg, judgement) == epoch


def test_wrappers(tmp_path):
    write(tmp_path, train=random_content(random.Random(1)), val=content_of())
    cfg = config_of(tmp_path)
    inner = cfg.train_dataloader.dataset
    other = dict(inner, filter_cfg=None, indices=5)
    parts = [
        dict(type='RepeatDataset', times=3, dataset=inner),
        dict(type='MultiImageMixDataset', dataset=other, pipeline=[]),
    ]
    for dataset, known in (
        (dict(type='ConcatDataset', datasets=parts), True),
        (dict(type='Own', dataset=inner), False),
        (dict(inner, type='CityscapesDataset'), False),
    ):
        cfg.train_dataloader.dataset = dataset
        epoch = training_epoch(cfg, judge(cfg))
        assert epoch.images == len(build(cfg)) if known else epoch is None


def test_the_recipe_on_coco(tmp_path, monkeypatch):
    """COCO's categories, no classes in the config, annotations alone."""
    names = CocoDataset.METAINFO['classes']
    # With gaps, as COCO's are.
    ids = [place + 1 + place // 8 for place in range(len(names))]
    (tmp_path / 'annotations').mkdir()
    for part, images in (('train', 1000), ('val', 50)):
        content = content_of(images)
        content['categories'] = [
            dict(id=i, name=name) for i, name in zip(ids, names, strict=True)
        ]
        for i, image in enumerate(content['images']):
            image.update(width=640 if i % 3 else 427, height=600)
        # Every tenth image has no object.
        content['annotations'] = [
            dict(one, category_id=ids[one['id'] % 80])
            for one in content['annotations']
            if one['image_id'] % 10
        ]
        write(tmp_path / 'annotations', **{f'instances_{part}2017': content})
    monkeypatch.setenv('COCO_ROOT', f'{tmp_path}/')
    cfg = Config.fromfile(RECIPE)
    judgement = judge(cfg)
    assert levels(list(data.check_annotations(cfg, judgement))) == [PASS] * 2
    assert data.classes(judgement) == names
    images = len(build(cfg))
    assert training_epoch(cfg, judgement) == (images, True)
    assert 800 < images < 1000
    net = training.build_model(cfg)
    for indices, left in ((None, images - 3 * 256), (600, 88)):
        cfg.train_dataloader.dataset.indices = indices
        epoch = training_epoch(cfg, judge(cfg))
        (finding,) = training.check_plan(cfg, net, 8, epoch)
        updates = epoch.images // 256
        assert f'epoch: {updates} updates, {left} images' in finding.text
