# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Planted faults: the doctor and training say the same of each.

And with what they let pass mmdet trains and evaluates.
"""

import copy
import math
import sys
from typing import Any, NamedTuple, get_args

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, init_default_scope

from mmdet_megdet.annotations import judge
from mmdet_megdet.annotations.verdict import Level
from mmdet_megdet.errors import DataError
from mmdet_megdet.faults.data import check_annotation_files
from tests.annotations.configs import (
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
    """A fault, and what we say of it."""

    level: str | None
    words: str
    edits: dict[str, Any]  # by part: fields of its entry 3, or all of it
    settings: dict[str, Any] = {}  # of the config


MASK = dict(with_mask=True)
TRAIN = 'train_dataloader__dataset__'
VAL = 'val_dataloader__dataset__'
RLE = dict(size=[HEIGHT, WIDTH], counts=[1500, 36])
FLAT, CROWD = dict(bbox=[0.1, 0.1, 0.5, 0.5]), dict(iscrowd=1)
OTHER_IMAGES = [i | dict(file_name='x.jpg') for i in content_of()['images']]
# fmt: off
PLANTS = [
    # fields
    Plant('broken', '1 of annotations cannot be used: Object missing required '
        'field `area`: id 103.', {A: dict(area=GONE)}),
    Plant('broken', 'got 3 - at `$.bbox`: id 103.', {A: dict(bbox=[1, 2, 3])}),
    Plant('broken', 'at `$.bbox[1]`', {A: dict(bbox=[1, math.nan, 3, 4])}),
    Plant('broken', 'got `str` - at `$.width`: id 3.', {IM: dict(width='48')}),
    Plant('broken', "train.json has no list 'categories'.", {CAT: GONE}),
    # ids
    Plant('misleading', 'train.json: 1 id(s) of images occur more than once: '
        '0.', {IM: dict(id=0)}),
    Plant('broken', 'of annotations occur more than once', {A: dict(id=100)}),
    Plant('misleading', 'of categories occ', {CAT: [BOX, DISC | dict(id=3)]}),
    Plant('misleading', '1 annotation(s) belong to an image or a category '
        'that the file has not: id 103 (image 99).', {A: dict(image_id=99)}),
    Plant('misleading', 'or a category that the', {A: dict(category_id=99)}),
    # categories
    Plant('misleading', "label 1 is 'box' in the file", {CAT: [DISC, BOX]}),
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
        {TRAIN + 'data_prefix': dict(_delete_=True, img_path='')}),
    # boxes
    Plant('misleading', 'train.json: not one of its 16 annotations is left: '
        '16 without area', {A: [a | FLAT for a in OBJECTS]}),
    Plant('misleading', '16 crowds', {A: [a | CROWD for a in OBJECTS]}),
    Plant('misleading', '1 annotation(s) have a box that lies outside the '
        'image: id 103 (image 1, 1.jpg).', {A: dict(bbox=[WIDTH, 4, 5, 5])}),
    Plant('notable', 'have a box that reaches over the edge of the image: id '
        '103', {A: dict(bbox=[4, HEIGHT - 5, 5, 9])}),
    Plant(None, '', {A: dict(bbox=[4, HEIGHT - 5, 5, 6])}),  # rounding
    Plant('notable', 'have a box without area (width, height or area below 1 '
        'pixel): id 103', {A: dict(bbox=[4, 4, 0, 5])}),
    Plant(None, '', {A: dict(ignore=1, bbox=[WIDTH, 4, 5, 5])}),
    # nothing left
    Plant('broken', 'not one of its 0 images is left', {IM: []}),
    Plant('misleading', 'of its 0 ann', {A: []}, {TRAIN + 'filter_cfg': None}),
    Plant('broken', 'train.json: not one of its 8 images is left by '
        'filter_cfg=', {}, {TRAIN + 'filter_cfg__min_size': 33}),
    Plant('broken', 'train.json: indices=[8] is neither a number nor a list',
        {}, {TRAIN + 'indices': [8]}),
    Plant('misleading', 'val.json: not one of its 0 annotations', {VAL_A: []}),
    # masks
    Plant('broken', '1 annotation(s) have no segmentation that is a list of '
        'polygons', {A: dict(segmentation=GONE)}, MASK),
    Plant('broken', 'have no segmentation that is',
        {A: dict(segmentation=[1, 2, 3, 4, 5, 6])}, MASK),
    Plant('notable', 'have no polygon of 3 points: id 103',
        {A: dict(segmentation=[[1, 2, 3, 4]])}, MASK),
    Plant(None, '', {A: dict(segmentation=RLE)}, MASK),
    Plant('broken', 'RLE of the size [height, width] of the image: id 103',
        {A: dict(segmentation=RLE | dict(size=[WIDTH, HEIGHT]))}, MASK),
    # evaluation
    Plant('broken', 'val.json: 1 annotation(s) have no iscrowd, which the '
        'evaluation asks for: id 203 (image 51, 51.jpg).',
        {VAL_A: dict(iscrowd=GONE)}),
    Plant(None, '', {A: dict(iscrowd=GONE)}),
    Plant('notable', 'have the id 0, by which pycocotools says that nothing '
        'matched', {VAL_A: dict(id=0)}),
    Plant('broken', 'lacks 4 image(s): id 50', {},
        {'val_evaluator__ann_file': 'train.json'}),
    Plant('misleading', 'has others under the ids of 8 image(s): id 0 (x.jpg)',
        {VAL_A: OBJECTS, 'val.images': OTHER_IMAGES},
        {'val_evaluator__ann_file': 'train.json'}),
    Plant('misleading', 'has, and they do not show, 1 image(s): id 53', {},
        {VAL + 'indices': 3}),
    # As COCO's test-dev, of which the objects are not known.
    Plant(None, '', {VAL_A: GONE}, {'val_evaluator__format_only': True,
        'val_evaluator__outfile_prefix': 'predicted'}),
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
            broken = bool(said['broken'])
            assert ('on purpose' in str(caught.value)) is not broken
        else:
            warned = [f.text for f in findings if f.level == WARN]
            assert [v.text for v in check_annotation_files(cfg)] == warned
    if not said['broken']:
        train_and_evaluate(cfg)


def without_gone(fields: dict) -> dict:
    return {key: value for key, value in fields.items() if value is not GONE}


def train_and_evaluate(cfg: Config) -> None:
    """Use both data sets as mmdet does, with a guess of each label."""
    init_default_scope('mmdet')
    train, val = (
        DATASETS.build(cfg[f'{role}_dataloader'].dataset)
        for role in ('train', 'val')
    )
    metric = METRICS.build(cfg.val_evaluator)
    metric.dataset_meta = val.metainfo
    pred = dict(
        bboxes=torch.tensor([[4.0, 4.0, 14.0, 12.0]] * 2),
        scores=torch.full((2,), 0.5),
        labels=torch.arange(2),
        masks=torch.ones(2, HEIGHT, WIDTH, dtype=torch.bool),
    )
    for dataset in (train, val):
        load_annotations = dataset.pipeline.transforms[1]
        for i in range(len(dataset)):
            image = dict(dataset.get_data_info(i), ori_shape=(HEIGHT, WIDTH))
            load_annotations(image)
            if dataset is val:
                metric.process({}, [image | dict(pred_instances=pred)])
    metric.evaluate(len(val))


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
