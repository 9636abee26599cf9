# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Planted faults: the doctor and training say the same of each.

What mmdet and pycocotools themselves do with a fault stands beside it, and is
tried too: they raise, or go on without a word.
"""

from __future__ import annotations

import copy
import math
import sys
from contextlib import nullcontext
from typing import Any, NamedTuple, get_args

import pytest
import torch
from mmdet.datasets import CocoDataset
from mmdet.evaluation import CocoMetric
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, init_default_scope

from mmdet_megdet.annotations import judge
from mmdet_megdet.annotations.verdict import Level
from mmdet_megdet.errors import DataError
from mmdet_megdet.faults.data import check_annotation_files
from tests.annotations.configs import (
    CLASSES,
    HEIGHT,
    WIDTH,
    config_of,
    content_of,
    write,
)
from tests.tools.checks.findings import levels, only
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import data
from checks.report import FAIL, PASS, WARN

# Parts of the files.
A, IM, CAT = 'train.annotations', 'train.images', 'train.categories'
VAL_A, VAL_CAT = 'val.annotations', 'val.categories'
OBJECTS = content_of()['annotations']
BOX, DISC = content_of()['categories']
CONE = dict(id=9, name='cone')
GONE = object()


class Plant(NamedTuple):
    """A fault, what we say of it, and what mmdet does by itself."""

    level: str | None
    words: str
    edits: dict[str, Any]  # by part: fields of its entry 3, or all of it
    settings: dict[str, Any] = {}  # of the config
    error: type[Exception] | None = None  # mmdet's or pycocotools'


MASK = dict(with_mask=True)
TRAIN = 'train_dataloader__dataset__'
VAL = 'val_dataloader__dataset__'
RLE = dict(size=[HEIGHT, WIDTH], counts=[1500, 36])
FLAT = dict(bbox=[0.1, 0.1, 0.5, 0.5])
OTHER_IMAGES = [i | dict(file_name='x.jpg') for i in content_of()['images']]
# fmt: off
PLANTS = [
    # fields
    Plant('broken', '1 of annotations cannot be used: Object missing required '
        'field `area`: id 103.', {A: dict(area=GONE)}, error=KeyError),
    Plant('broken', 'Expected `array` of length 4, got 3 - at `$.bbox`: id '
        '103.', {A: dict(bbox=[1, 2, 3])}, error=ValueError),
    Plant('broken', 'at `$.bbox[1]`', {A: dict(bbox=[1, math.nan, 3, 4])}),
    Plant('broken', 'Expected `float`, got `str` - at `$.width`: id 3.',
        {IM: dict(width='48')}, error=TypeError),
    Plant('broken', "train.json has no list 'categories'.", {CAT: GONE},
        error=KeyError),
    # ids
    Plant('misleading', 'train.json: 1 id(s) of images occur more than once: '
        '0.', {IM: dict(id=0)}),
    Plant('broken', '1 id(s) of annotations occur more than once: 100.',
        {A: dict(id=100)}, error=AssertionError),
    Plant('misleading', '1 id(s) of categories occur more than once: 3.',
        {CAT: [BOX, DISC | dict(id=3)]}),
    Plant('misleading', '1 annotation(s) belong to an image or a category '
        'that the file has not: id 103 (image 99).', {A: dict(image_id=99)}),
    Plant('misleading', 'or a category that the file has not: id 103 (image '
        '1, 1.jpg).', {A: dict(category_id=99)}),
    # categories
    Plant('misleading', "label 0 is 'disc' in the file and 'box' in the "
        'config', {CAT: [DISC, BOX]}),
    Plant('misleading', 'val.json: the categories are not those of',
        {VAL_CAT: [DISC, BOX]}, {VAL + 'metainfo__classes': ('disc', 'box')}),
    Plant('misleading', "label 0 is 'disc' in the file and 'box' in the "
        'config, label 1 is None', {CAT: [DISC], A: OBJECTS[1::2]}),
    Plant('misleading', "label 2 is 'box' in the file and None in the config.",
        {CAT: [BOX, DISC, CONE | dict(name='box')], A: dict(category_id=9)}),
    Plant('misleading', '1 annotation(s) are of categories that the config '
        "has not, 'cone': id 103 (image 1, 1.jpg).",
        {CAT: [BOX, DISC, CONE], A: dict(category_id=9)}),
    Plant('broken', "metainfo.classes='box' are no names of classes",
        {CAT: [BOX, DISC | dict(name='bo')]},
        {TRAIN + 'metainfo__classes': 'box'}),
    Plant('broken', 'train.json: data_prefix has no img.', {},
        {TRAIN + 'data_prefix': dict(_delete_=True, img_path='')}, KeyError),
    # boxes
    Plant('misleading', 'train.json: not one of its 16 annotations is left: '
        '16 without area', {A: [a | FLAT for a in OBJECTS]}),
    Plant('misleading', 'not one of its 16 annotations is left:',
        {A: [a | dict(iscrowd=1) for a in OBJECTS]}),
    Plant('misleading', '1 annotation(s) have a box that lies outside the '
        'image: id 103 (image 1, 1.jpg).', {A: dict(bbox=[WIDTH, 4, 5, 5])}),
    Plant('notable', 'have a box that reaches over the edge of the image: id '
        '103', {A: dict(bbox=[4, HEIGHT - 5, 5, 9])}),
    Plant(None, '', {A: dict(bbox=[4, HEIGHT - 5, 5, 6])}),  # rounding
    Plant('notable', 'have a box without area (width, height or area below 1 '
        'pixel): id 103', {A: dict(bbox=[4, 4, 0, 5])}),
    Plant(None, '', {A: dict(ignore=1, bbox=[WIDTH, 4, 5, 5])}),
    # nothing left
    Plant('broken', 'not one of its 0 images is left', {IM: []},
        error=ValueError),
    Plant('misleading', 'not one of its 0 annotations is', {A: []},
        {TRAIN + 'filter_cfg': None}),
    Plant('broken', 'train.json: not one of its 8 images is left by '
        'filter_cfg=', {}, {TRAIN + 'filter_cfg__min_size': 33}, ValueError),
    Plant('broken', 'train.json: indices=[8] is neither a number nor a list',
        {}, {TRAIN + 'indices': [8]}, IndexError),
    Plant('misleading', 'val.json: not one of its 0 annotations is left',
        {VAL_A: []}),
    # masks
    Plant('broken', '1 annotation(s) have no segmentation that is a list of '
        'polygons', {A: dict(segmentation=GONE)}, MASK, KeyError),
    Plant('notable', 'have no polygon of 3 points: id 103',
        {A: dict(segmentation=[[1, 2, 3, 4]])}, MASK),
    Plant(None, '', {A: dict(segmentation=RLE)}, MASK),
    Plant('broken', 'RLE of the size [height, width] of the image: id 103',
        {A: dict(segmentation=RLE | dict(size=[WIDTH, HEIGHT]))}, MASK,
        ValueError),
    # evaluation
    Plant('broken', 'val.json: 1 annotation(s) have no iscrowd, which the '
        'evaluation asks for: id 203 (image 51, 51.jpg).',
        {VAL_A: dict(iscrowd=GONE)}, error=KeyError),
    Plant(None, '', {A: dict(iscrowd=GONE)}),
    Plant('notable', 'have the id 0, by which pycocotools says that nothing '
        'matched', {VAL_A: dict(id=0)}),
    Plant('broken', 'lacks 4 image(s): id 50', {},
        {'val_evaluator__ann_file': 'train.json'}, AssertionError),
    Plant('misleading', 'has others under the ids of 8 image(s): id 0 (x.jpg)',
        {VAL_A: OBJECTS, 'val.images': OTHER_IMAGES},
        {'val_evaluator__ann_file': 'train.json'}),
    Plant('misleading', 'has, and they do not show, 1 image(s): id 53', {},
        {VAL + 'indices': 3}),
]
# fmt: on


@pytest.fixture
def files():
    return dict(train=content_of(), val=content_of(4, first=50))


@pytest.mark.parametrize('plant', PLANTS)
def test_doctor_and_training_agree(tmp_path, monkeypatch, files, plant):
    for part, edit in plant.edits.items():
        file, name = part.split('.')
        if isinstance(edit, dict):
            entry = files[file][name][3] | edit
            files[file][name][3] = without_gone(entry)
        else:
            files[file] = without_gone(files[file] | {name: edit})
    write(tmp_path, **files)
    monkeypatch.chdir(tmp_path)
    cfg = config_of(tmp_path, **plant.settings)
    judgement = judge(cfg)
    said = {level: [] for level in get_args(Level)}
    for verdict in judgement.verdicts:
        said[verdict.level].append(verdict.text)
    if plant.level is not None:
        assert any(plant.words in text for text in said[plant.level]), said
    # Of a fault more may be said; of what is none, nothing.
    if plant.level in (None, 'notable'):
        assert {k for k, v in said.items() if v} <= {'sound', plant.level}

    modes = {'raise': ('broken', 'misleading'), 'warn': ('broken',)}
    for mode, refused in modes.items():
        if mode == 'warn':
            hook = dict(type='DataCheckHook', annotations=mode)
            cfg.default_hooks = dict(data_check=hook)
        findings = list(data.check_annotations(cfg, judgement))
        failed = [f.text for f in findings if f.level == FAIL]
        assert failed == [
            v.text for v in judgement.verdicts if v.level in refused
        ]
        if failed:
            with pytest.raises(DataError) as caught:
                check_annotation_files(cfg)
            assert all(text in str(caught.value) for text in failed)
        else:
            warned = [f.text for f in findings if f.level == WARN]
            assert [v.text for v in check_annotation_files(cfg)] == warned

    train_and_evaluate(cfg, plant.error)


def without_gone(fields: dict) -> dict:
    return {key: value for key, value in fields.items() if value is not GONE}


def train_and_evaluate(cfg: Config, error: type[Exception] | None) -> None:
    """Use both data sets as mmdet does, which raises where it should."""
    init_default_scope('mmdet')
    with pytest.raises(error) if error else nullcontext():
        train, val = (
            DATASETS.build(cfg[f'{role}_dataloader'].dataset)
            for role in ('train', 'val')
        )
        for dataset in (train, val):
            load_annotations = dataset.pipeline.transforms[1]
            for i in range(len(dataset)):
                info = dataset.get_data_info(i)
                load_annotations(info | dict(ori_shape=(HEIGHT, WIDTH)))
        evaluate(METRICS.build(cfg.val_evaluator), val)


def evaluate(metric: CocoMetric, dataset: CocoDataset) -> None:
    """Evaluate a prediction of each label in every image."""
    metric.dataset_meta = dataset.metainfo
    count = len(CLASSES)
    pred = dict(
        bboxes=torch.tensor([[4.0, 4.0, 14.0, 12.0]]).expand(count, 4),
        scores=torch.full((count,), 0.5),
        labels=torch.arange(count),
        masks=torch.ones(count, HEIGHT, WIDTH, dtype=torch.bool),
    )
    for i in range(len(dataset)):
        sample = dict(pred_instances=pred, ori_shape=(HEIGHT, WIDTH))
        sample['img_id'] = dataset.get_data_info(i)['img_id']
        metric.process({}, [sample])
    metric.evaluate(len(dataset))


def test_a_fault_of_testing_alone(tmp_path, files):
    """Training does not look at it, tools/test.py does."""
    write(tmp_path, **files, test=files['val'] | dict(annotations=[]))
    cfg = config_of(tmp_path)
    cfg.test_dataloader = copy.deepcopy(cfg.val_dataloader)
    cfg.test_dataloader.dataset.ann_file = 'test.json'
    findings = list(data.check_annotations(cfg, judge(cfg)))
    finding = only(findings, WARN)
    assert finding.text.endswith('tools/test.py refuses it.')
    assert levels(findings).count(PASS) == 2
    check_annotation_files(cfg)
    with pytest.raises(DataError, match=r'test\.json: not one of its 0'):
        check_annotation_files(cfg, roles=('test',))
