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
from typing import Any, NamedTuple

import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmdet_megdet.annotations import judge
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
# mmdet raises while images are loaded, or at the evaluation.
LATER = Exception


class Plant(NamedTuple):
    """A fault, what we say of it, and what mmdet does by itself."""

    level: str | None
    error: type[Exception] | None  # mmdet's, while it builds the data sets
    words: str
    edits: dict[str, Any]  # by part: fields of its entry 3, or all of it
    settings: dict[str, Any] = {}  # of the config


MASK = dict(with_mask=True)
TRAIN = 'train_dataloader__dataset__'
VAL = 'val_dataloader__dataset__'
# fmt: off
PLANTS = [
    # fields
    Plant('broken', KeyError, '1 of annotations cannot be used: Object missing'
        ' required field `area`: id 103.', {A: dict(area=GONE)}),
    Plant('broken', KeyError, 'Object missing required field `width`: id 3',
        {IM: dict(width=GONE)}),
    Plant('broken', ValueError, 'Expected `array` of length 4, got 3 - at '
        '`$.bbox`: id 103.', {A: dict(bbox=[1, 2, 3])}),
    Plant('broken', None, 'at `$.bbox[1]`',
        {A: dict(bbox=[1, math.nan, 3, 4])}),
    Plant('broken', TypeError, 'Expected `float`, got `str` - at `$.width`: '
        'id 3.', {IM: dict(width='48')}),
    Plant('broken', None, 'got `str` - at `$.iscrowd`: id 103.',
        {A: dict(iscrowd='0')}),
    Plant('broken', KeyError, "train.json has no list 'categories'.",
        {CAT: GONE}),
    # ids
    Plant('misleading', None, 'train.json: 1 id(s) of images occur more than '
        'once: 0.', {IM: dict(id=0)}),
    Plant('broken', AssertionError, '1 id(s) of annotations occur more than '
        'once: 100.', {A: dict(id=100)}),
    Plant('misleading', None, '1 id(s) of categories occur more than once: 3.',
        {CAT: [BOX, DISC | dict(id=3)]}),
    Plant('misleading', None, '1 annotation(s) belong to an image or a '
        'category that the file has not: id 103 (image 99).',
        {A: dict(image_id=99)}),
    Plant('misleading', None, 'or a category that the file has not: id 103 '
        '(image 1, 1.jpg).', {A: dict(category_id=99)}),
    # categories
    Plant('misleading', None, "label 0 is 'disc' in the file and 'box' in the "
        'config', {CAT: [DISC, BOX]}),
    Plant('misleading', None, 'val.json: the categories are not those of',
        {VAL_CAT: [DISC, BOX]}, {VAL + 'metainfo__classes': ('disc', 'box')}),
    Plant('misleading', None, "label 0 is 'disc' in the file and 'box' in the "
        'config, label 1 is None', {CAT: [DISC], A: OBJECTS[1::2]}),
    Plant('misleading', None, "label 2 is 'box' in the file and None in the "
        'config.', {CAT: [BOX, DISC, CONE | dict(name='box')],
                    A: dict(category_id=9)}),
    Plant('misleading', None, '1 annotation(s) are of categories that the '
        "config has not, 'cone': id 103 (image 1, 1.jpg).",
        {CAT: [BOX, DISC, CONE], A: dict(category_id=9)}),
    Plant('broken', None, "metainfo.classes='box' are no names of classes",
        {CAT: [BOX, DISC | dict(name='bo')]},
        {TRAIN + 'metainfo__classes': 'box'}),
    Plant('broken', KeyError, 'train.json: data_prefix has no img.', {},
        {TRAIN + 'data_prefix': dict(_delete_=True, img_path='')}),
    # boxes
    Plant('misleading', None, 'have a box that lies outside the image: id 106 '
        '(image 3, 3.jpg), id 107', {IM: dict(width=0)}),
    Plant('misleading', None, 'train.json: not one of its 16 annotations is '
        'left: 16 without area',
        {A: [a | dict(bbox=[0.1, 0.1, 0.5, 0.5]) for a in OBJECTS]}),
    Plant('misleading', None, 'not one of its 16 annotations is left:',
        {A: [a | dict(iscrowd=1) for a in OBJECTS]}),
    Plant('misleading', None, '1 annotation(s) have a box that lies outside '
        'the image: id 103 (image 1, 1.jpg).',
        {A: dict(bbox=[WIDTH, 4, 5, 5])}),
    Plant('notable', None, 'have a box that reaches over the edge of the '
        'image: id 103', {A: dict(bbox=[4, HEIGHT - 5, 5, 9])}),
    Plant(None, None, '', {A: dict(bbox=[4, HEIGHT - 5, 5, 6])}),  # rounding
    Plant('notable', None, 'have a box without area (width, height or area '
        'below 1 pixel): id 103', {A: dict(bbox=[4, 4, 0, 5])}),
    Plant(None, None, '', {A: dict(ignore=1, bbox=[WIDTH, 4, 5, 5])}),
    # nothing left
    Plant('broken', ValueError, 'not one of its 0 images is left', {IM: []}),
    Plant('misleading', None, 'not one of its 0 annotations is', {A: []},
        {TRAIN + 'filter_cfg': None}),
    Plant('broken', ValueError, 'train.json: not one of its 8 images is left '
        'by filter_cfg=', {}, {TRAIN + 'filter_cfg__min_size': 33}),
    Plant('broken', IndexError, 'train.json: indices=[8] is neither a number '
        'nor a list', {}, {TRAIN + 'indices': [8]}),
    Plant('misleading', None, 'val.json: not one of its 0 annotations is left',
        {VAL_A: []}),
    # masks
    Plant('broken', LATER, '1 annotation(s) have no segmentation that is a '
        'list of polygons', {A: dict(segmentation=GONE)}, MASK),
    Plant('broken', LATER, 'have no segmentation that is',
        {A: dict(segmentation=[1, 2, 3, 4, 5, 6])}, MASK),
    Plant('notable', None, 'have no polygon of 3 points: id 103',
        {A: dict(segmentation=[[1, 2, 3, 4]])}, MASK),
    Plant(None, None, '', {A: dict(segmentation=dict(
        size=[HEIGHT, WIDTH], counts=[1500, 36]))}, MASK),
    Plant('broken', LATER, 'RLE of the size [height, width] of the image: id '
        '103', {A: dict(segmentation=dict(
        size=[WIDTH, HEIGHT], counts=[1500, 36]))}, MASK),
    # evaluation
    Plant('broken', LATER, 'val.json: 1 annotation(s) have no iscrowd, which '
        'the evaluation asks for: id 203 (image 51, 51.jpg).',
        {VAL_A: dict(iscrowd=GONE)}),
    Plant(None, None, '', {A: dict(iscrowd=GONE)}),
    Plant('notable', None, 'have the id 0, by which pycocotools says that '
        'nothing matched', {VAL_A: dict(id=0)}),
    Plant('broken', LATER, 'lacks 4 image(s): id 50', {},
        {'val_evaluator__ann_file': 'train.json'}),
    Plant('misleading', None, 'has others under the ids of 8 image(s): id 0 '
        '(x.jpg)', {VAL_A: OBJECTS, 'val.images': [
            image | dict(file_name='x.jpg') for image in content_of()['images']
        ]}, {'val_evaluator__ann_file': 'train.json'}),
    Plant('misleading', None, 'has, and they do not show, 1 image(s): id 53',
        {}, {VAL + 'indices': 3}),
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
    level = plant.level
    judgement = judge(cfg)
    said = [v for v in judgement.verdicts if v.level not in ('sound', level)]
    assert [v for v in said if level in (None, 'notable')] == []
    texts = [v.text for v in judgement.verdicts if v.level == level]
    assert level is None or any(plant.words in text for text in texts), texts

    broken = any(v.level == 'broken' for v in judgement.verdicts)
    findings = list(data.check_annotations(cfg, judgement))
    failed = [f.text for f in findings if f.level == FAIL]
    assert bool(failed) == (level in ('broken', 'misleading'))
    if failed:
        with pytest.raises(DataError) as caught:
            check_annotation_files(cfg)
        assert all(text in str(caught.value) for text in failed)
        assert ('on purpose' in str(caught.value)) is not broken
    else:
        warned = [f.text for f in findings if f.level == WARN]
        assert [v.text for v in check_annotation_files(cfg)] == warned
    hook = dict(type='DataCheckHook', annotations='warn')
    cfg.default_hooks = dict(data_check=hook)
    findings = list(data.check_annotations(cfg, judgement))
    assert any(f.level == FAIL for f in findings) == broken
    if not broken:
        check_annotation_files(cfg)

    train_and_evaluate(cfg, plant.error)


def without_gone(fields: dict) -> dict:
    return {key: value for key, value in fields.items() if value is not GONE}


def train_and_evaluate(cfg: Config, error: type[Exception] | None) -> None:
    """Use both data sets as mmdet does, which raises where it should."""
    init_default_scope('mmdet')
    configs = [cfg[f'{role}_dataloader'].dataset for role in ('train', 'val')]
    if error not in (None, LATER):
        with pytest.raises(error):
            list(map(DATASETS.build, configs))
        return
    train, val = map(DATASETS.build, configs)
    with pytest.raises(error) if error else nullcontext():
        for dataset in (train, val):
            load_annotations = dataset.pipeline.transforms[1]
            for i in range(len(dataset)):
                info = dataset.get_data_info(i)
                load_annotations(info | dict(ori_shape=(HEIGHT, WIDTH)))
        evaluate(cfg.val_evaluator, val)


def evaluate(evaluator: Config, dataset) -> None:
    """Evaluate a prediction of each label in every image."""
    settings = dict(evaluator)
    settings.pop('type')
    metric = CocoMetric(**settings)
    metric.dataset_meta = dataset.metainfo
    count = len(CLASSES)
    pred = dict(
        bboxes=torch.tensor([[4.0, 4.0, 14.0, 12.0]]).expand(count, 4),
        scores=torch.full((count,), 0.5),
        labels=torch.arange(count),
        masks=torch.ones(count, HEIGHT, WIDTH, dtype=torch.bool),
    )
    for i in range(len(dataset)):
        sample = dict(
            img_id=dataset.get_data_info(i)['img_id'],
            ori_shape=(HEIGHT, WIDTH),
            pred_instances=pred,
        )
        metric.process({}, [sample])
    metric.evaluate(len(dataset))


def test_a_fault_of_testing_alone(tmp_path, files):
    """Training does not look at it, tools/test.py does."""
    write(tmp_path, **files, test=files['val'] | dict(annotations=[]))
    cfg = config_of(tmp_path)
    cfg.test_dataloader = copy.deepcopy(cfg.val_dataloader)
    cfg.test_dataloader.dataset.ann_file = 'test.json'
    path = f'{tmp_path}/test.json'
    cfg.test_evaluator = dict(cfg.val_evaluator, ann_file=path)
    findings = list(data.check_annotations(cfg, judge(cfg)))
    (finding,) = [f for f in findings if f.level != PASS]
    assert finding.level == WARN
    assert finding.text.endswith('tools/test.py refuses it.')
    check_annotation_files(cfg)
    with pytest.raises(DataError, match=r'test\.json: not one of its 0'):
        check_annotation_files(cfg, roles=('test',))
