# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What is counted of a data set, against the data set that mmdet builds."""

from __future__ import annotations

import json
import random
import sys
from functools import partial

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

from checks import data, model, plan
from checks.report import PASS

RECIPE = ROOT / 'configs' / 'megdet' / 'r50_fpn_256bs.py'


def random_content(seed: int) -> dict:
    """Return images and boxes of all kinds that are not malformed."""
    draw = random.Random(seed)
    content = content_of(30)
    content['categories'].append(dict(id=11, name='cone'))
    for image in content['images']:
        image.update(width=draw.randint(8, 60), height=draw.randint(8, 60))
    for annotation in content['annotations']:
        annotation.update(
            image_id=draw.randrange(32),
            category_id=draw.choice([3, 3, 7, 11, 12]),
            bbox=[draw.choice([-9, -1, 0, 7.5, 40]) for _ in range(2)]
            + [draw.choice([0, 0.9, 1, 7.25, 30]) for _ in range(2)],
            area=draw.choice([0, -1, 5, 9.5]),
            iscrowd=draw.choice([0, 0, 1]),
            ignore=draw.choice([0, 0, 0, 1]),
        )
    return content


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize('kept', ['typed', 'as pycocotools'])
def test_counts_as_mmdet_does(tmp_path, seed, kept):
    """Images in their order, and the objects in each."""
    content = random_content(seed)
    if kept != 'typed':  # which the typed decoder does not take
        content['info'] = float('nan')
    write(tmp_path, content, content_of())
    draw = random.Random(seed)
    rule = dict(
        filter_empty_gt=draw.random() < 0.5, min_size=draw.choice([0, 16, 32])
    )
    cfg = config_of(
        tmp_path,
        train_dataloader__dataset__filter_cfg=rule,
        train_dataloader__dataset__indices=draw.choice([None, 7, -4, [3, 1]]),
        train_dataloader__dataset__test_mode=draw.random() < 0.2,
    )
    judgement = judge(cfg)
    one = judgement.data_sets[0]
    init_default_scope('mmdet')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    assert one.ids == [info['img_id'] for info in infos]
    table = read_annotations(one.use.path, False)
    found = instances_of(table, one.use.classes)
    kept = found.kept & np.isin(table.image_of, one.ids)
    labels = [i['bbox_label'] for info in infos for i in info['instances']]
    assert sorted(found.label[kept].tolist()) == sorted(labels)
    portraits = {info['width'] < info['height'] for info in infos}
    assert training_epoch(cfg, judgement) == (
        len(dataset),
        len(portraits) == 2,
    )


def test_wrappers(tmp_path):
    write(tmp_path, random_content(1), content_of())
    cfg = config_of(tmp_path)
    inner = cfg.train_dataloader.dataset
    other = dict(inner, filter_cfg=None, indices=5)
    cfg.train_dataloader.dataset = dict(
        type='ConcatDataset',
        datasets=[
            dict(type='RepeatDataset', times=3, dataset=inner),
            dict(type='MultiImageMixDataset', dataset=other, pipeline=[]),
        ],
    )
    init_default_scope('mmdet')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    assert training_epoch(cfg, judge(cfg)).images == len(dataset)


def test_what_cannot_be_counted(tmp_path):
    write(tmp_path, content_of(), content_of())
    cfg = config_of(tmp_path)
    inner = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type='Own', dataset=inner)
    assert training_epoch(cfg, judge(cfg)) is None
    cfg.train_dataloader.dataset = dict(inner, type='CityscapesDataset')
    assert training_epoch(cfg, judge(cfg)) is None


@pytest.fixture
def coco(tmp_path, monkeypatch):
    """COCO's own categories; annotations alone, no images."""
    names = CocoDataset.METAINFO['classes']
    (tmp_path / 'annotations').mkdir()
    for part, images in (('train', 1000), ('val', 50)):
        content = content_of(images)
        # With gaps, as COCO's are.
        content['categories'] = [
            dict(id=i + 1 + i // 8, name=name) for i, name in enumerate(names)
        ]
        for i, image in enumerate(content['images']):
            image.update(width=640 if i % 3 else 427, height=600)
        # Every tenth image has no object.
        content['annotations'] = [
            dict(a, category_id=content['categories'][a['id'] % 80]['id'])
            for a in content['annotations']
            if a['image_id'] % 10
        ]
        path = tmp_path / 'annotations' / f'instances_{part}2017.json'
        path.write_text(json.dumps(content))
    monkeypatch.setenv('COCO_ROOT', f'{tmp_path}/')
    return tmp_path


def test_the_recipe_on_coco(coco):
    """No classes in the config, and no images on the disk."""
    cfg = Config.fromfile(RECIPE)
    judgement = judge(cfg)
    findings = list(data.check_annotations(cfg, judgement))
    assert levels(findings) == [PASS, PASS], findings
    assert data.classes(judgement) == CocoDataset.METAINFO['classes']
    init_default_scope('mmdet')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    epoch = training_epoch(cfg, judgement)
    assert epoch == (len(dataset), True)
    assert 800 < len(dataset) < 1000
    check = partial(plan.check_plan, cfg, model.build_model(cfg), 8)
    (finding,) = check(epoch)
    rest = len(dataset) - 3 * 256
    assert f'epoch: 3 updates, {rest} images' in finding.text
    cfg.train_dataloader.dataset.indices = 600
    (finding,) = check(training_epoch(cfg, judge(cfg)))
    assert 'epoch: 2 updates, 88 images' in finding.text
