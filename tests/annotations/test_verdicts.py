# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Planted faults: the doctor and training say the same of each.

What mmdet and pycocotools themselves do with a fault stands beside it, and is
tried too: they raise, or go on without a word.
"""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
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
from checks.report import FAIL

A, IM, CAT = 'annotations', 'images', 'categories'
# While images are loaded, or at the evaluation.
LATER = 'later'


def change(part, **fields):
    """Change an entry of a part of a file."""
    return lambda content: content[part][3].update(fields)


def lose(part, key):
    return lambda content: content[part][3].pop(key)


def change_all(part, **fields):
    return lambda content: [entry.update(fields) for entry in content[part]]


def put(part, value):
    return lambda content: content.update({part: value})


def repeat_id(part):
    return lambda content: content[part][1].update(id=content[part][0]['id'])


def reverse(content):
    content[CAT].reverse()


def drop_category(content):
    content[CAT].pop(0)
    content[A] = content[A][1::2]


def add_category(content, name='cone'):
    content[CAT].append(dict(id=9, name=name))
    content[A][3]['category_id'] = 9


def mask(value):
    return change(A, segmentation=value)


def rle(*size):
    return mask(dict(size=size, counts=[1500, 36]))


def nothing(_):
    pass


class Files(NamedTuple):
    train: Callable = nothing
    val: Callable = nothing


def in_val(damage):
    return Files(val=damage)


def in_both(damage):
    return Files(damage, damage)


class Plant(NamedTuple):
    """A fault, what we say of it, and what mmdet does by itself.

    ``error`` is what mmdet raises while it builds the data sets, LATER, or
    None; ``settings`` are of the config, ``train__`` its train_dataloader's
    data set.
    """

    damage: Callable
    level: str | None
    error: type[Exception] | str | None
    words: str
    settings: dict[str, Any]


PLANTS: dict[str, Plant] = {}


def broken(name, damage, error, words, **settings):
    PLANTS[name] = Plant(damage, 'broken', error, words, settings)


def misleading(name, damage, words, **settings):
    PLANTS[name] = Plant(damage, 'misleading', None, words, settings)


def notable(name, damage, words, **settings):
    PLANTS[name] = Plant(damage, 'notable', None, words, settings)


def fine(name, damage, **settings):
    PLANTS[name] = Plant(damage, None, None, '', settings)


# fmt: off
# fields
broken('no area', lose(A, 'area'), KeyError,
    '1 of annotations cannot be used: Object missing required field '
    '`area`: id 103.')
broken('no width', lose(IM, 'width'), KeyError,
    '1 of images cannot be used: Object missing required field `width`: id 3')
broken('three numbers', change(A, bbox=[1, 2, 3]), ValueError,
    'Expected `array` of length 4, got 3 - at `$.bbox`: id 103.')
broken('box with NaN', change(A, bbox=[1, math.nan, 3, 4]), None,
    'at `$.bbox[1]`')
broken('width as text', change(IM, width='48'), TypeError,
    'Expected `float`, got `str` - at `$.width`: id 3.')
broken('crowd as text', change(A, iscrowd='0'), None,
    'got `str` - at `$.iscrowd`: id 103.')
broken('no categories', lambda content: content.pop(CAT), KeyError,
    "train.json has no list 'categories'.")
# ids
misleading('image id twice', repeat_id(IM),
    'train.json: 1 id(s) of images occur more than once: 0.')
broken('annotation id twice', repeat_id(A), AssertionError,
    '1 id(s) of annotations occur more than once: 100.')
misleading('category id twice', repeat_id(CAT),
    '1 id(s) of categories occur more than once: 3.')
misleading('unknown image', change(A, image_id=99),
    '1 annotation(s) belong to an image or a category that the file has not: '
    'id 103 (image 99).')
misleading('unknown category', change(A, category_id=99),
    'or a category that the file has not: id 103 (image 1, 1.jpg).')
misleading('width of zero', change(IM, width=0),
    'have a box that lies outside the image: id 106 (image 3, 3.jpg), id 107')
# categories
misleading('order of train', reverse,
    "label 0 is 'disc' in the file and 'box' in the config")
misleading('order and classes of val', in_val(reverse),
    "val.json: the categories are not those of",
    val__metainfo__classes=('disc', 'box'))
misleading('class that train lacks', drop_category,
    "label 0 is 'disc' in the file and 'box' in the config, label 1 is None")
misleading('one name twice', lambda content: add_category(content, 'box'),
    "label 2 is 'box' in the file and None in the config.")
misleading('category of no class', add_category,
    "1 annotation(s) are of categories that the config has not, 'cone': id "
    '103 (image 1, 1.jpg).')
broken('classes as a text',
    lambda content: content[CAT][1].update(name='bo'), None,
    "metainfo.classes='box' are no names of classes",
    train__metainfo__classes='box')
broken('no image folder', nothing, KeyError,
    'train.json: data_prefix has no img.',
    train__data_prefix=dict(_delete_=True, img_path=''))
# boxes
misleading('every box in corners of one',
    change_all(A, bbox=[0.1, 0.1, 0.5, 0.5]),
    'train.json: not one of its 16 annotations is left: 16 without area')
misleading('every object a crowd', change_all(A, iscrowd=1),
    'not one of its 16 annotations is left:')
misleading('box outside', change(A, bbox=[WIDTH, 4, 5, 5]),
    '1 annotation(s) have a box that lies outside the image: id 103 (image '
    '1, 1.jpg).')
notable('box over the edge', change(A, bbox=[4, HEIGHT - 5, 5, 9]),
    'have a box that reaches over the edge of the image: id 103')
fine('box over the edge by rounding', change(A, bbox=[4, HEIGHT - 5, 5, 6]))
notable('flat box', change(A, bbox=[4, 4, 0, 5]),
    'have a box without area (width, height or area below 1 pixel): id 103')
fine('ignored', change(A, ignore=1, bbox=[WIDTH, 4, 5, 5]))
# nothing left
broken('no images', put(IM, []), ValueError, 'not one of its 0 images is left')
misleading('no annotations', put(A, []), 'not one of its 0 annotations is',
    train__filter_cfg=None)
broken('no image is large enough', nothing, ValueError,
    'train.json: not one of its 8 images is left by filter_cfg=',
    train__filter_cfg__min_size=33)
broken('an image too many is chosen', nothing, IndexError,
    'train.json: indices=[8] is neither a number nor a list',
    train__indices=[8])
misleading('no annotations in val', in_val(put(A, [])),
    'val.json: not one of its 0 annotations is left')
# masks
broken('no mask', lose(A, 'segmentation'), LATER,
    '1 annotation(s) have no segmentation that is a list of polygons',
    with_mask=True)
broken('flat list of numbers', mask([1, 2, 3, 4, 5, 6]), LATER,
    'have no segmentation that is', with_mask=True)
notable('two points', mask([[1, 2, 3, 4]]),
    'have no polygon of 3 points: id 103', with_mask=True)
fine('RLE', rle(HEIGHT, WIDTH), with_mask=True)
broken('RLE of another image', rle(WIDTH, HEIGHT), LATER,
    'RLE of the size [height, width] of the image: id 103',
    with_mask=True)
# evaluation
broken('no iscrowd in val', in_val(lose(A, 'iscrowd')), LATER,
    'val.json: 1 annotation(s) have no iscrowd, which the evaluation asks '
    'for: id 203 (image 51, 51.jpg).')
fine('no iscrowd in train', lose(A, 'iscrowd'))
notable('annotation id 0', in_val(change(A, id=0)),
    'have the id 0, by which pycocotools says that nothing matched')
broken('evaluation by another file', nothing, LATER,
    'lacks 4 image(s): id 50', val_evaluator__ann_file='train.json')
misleading('evaluation of images that are not shown', nothing,
    'has, and they do not show, 1 image(s): id 53', val__indices=3)
# fmt: on


@pytest.fixture
def files(tmp_path):
    """The content of train.json and val.json, to be damaged."""
    return tmp_path, content_of(), content_of(4, first=50)


def prepared(files, name):
    """Write the damaged files; return their config."""
    root, train, val = files
    damage, settings = PLANTS[name].damage, dict(PLANTS[name].settings)
    if not isinstance(damage, Files):
        damage = Files(damage)
    damage.train(train)
    damage.val(val)
    write(root, train, val)
    if 'val_evaluator__ann_file' in settings:
        path = root / settings['val_evaluator__ann_file']
        settings['val_evaluator__ann_file'] = str(path)
    dataset = re.compile('^(train|val)__')
    return config_of(
        root,
        **{
            dataset.sub(r'\1_dataloader__dataset__', key): value
            for key, value in settings.items()
        },
    )


@pytest.mark.parametrize('name', PLANTS)
def test_doctor_and_training_agree(files, name):
    cfg = prepared(files, name)
    level, words = PLANTS[name].level, PLANTS[name].words
    judgement = judge(cfg)
    said = [v for v in judgement.verdicts if v.level not in ('sound', level)]
    assert [v for v in said if level in (None, 'notable')] == []
    if level is not None:
        texts = [v.text for v in judgement.verdicts if v.level == level]
        assert any(words in text for text in texts), judgement.verdicts
    findings = list(data.check_annotations(cfg, judgement))
    failed = [f for f in findings if f.level == FAIL]
    assert bool(failed) == (level in ('broken', 'misleading'))
    if failed:
        with pytest.raises(DataError) as caught:
            check_annotation_files(cfg)
        # Whether a file is there every rank looks for itself.
        if 'there is no annotation file' not in str(caught.value):
            assert all(f.text in str(caught.value) for f in failed)
    else:
        assert [v.text for v in check_annotation_files(cfg)] == [
            f.text for f in findings if f.level == 'WARN'
        ]
    cfg.default_hooks = dict(
        data_check=dict(type='DataCheckHook', annotations='warn')
    )
    findings = list(data.check_annotations(cfg, judgement))
    broken = any(v.level == 'broken' for v in judgement.verdicts)
    assert any(f.level == FAIL for f in findings) == broken
    if not broken:
        check_annotation_files(cfg)


def build(cfg: Config):
    """Build both data sets, as mmdet does."""
    init_default_scope('mmdet')
    return [
        DATASETS.build(cfg[f'{role}_dataloader'].dataset)
        for role in ('train', 'val')
    ]


def evaluate(cfg: Config, dataset) -> None:
    """Evaluate a prediction of each label in every image, as mmdet does."""
    settings = dict(cfg.val_evaluator)
    settings.pop('type')
    metric = CocoMetric(**settings)
    metric.dataset_meta = dataset.metainfo
    count = len(CLASSES)
    boxes = torch.tensor([[4.0, 4.0, 14.0, 12.0]]).expand(count, 4)
    for i in range(len(dataset)):
        pred = dict(
            bboxes=boxes,
            scores=torch.full((count,), 0.5),
            labels=torch.arange(count),
            masks=torch.ones(count, HEIGHT, WIDTH, dtype=torch.bool),
        )
        sample = dict(
            img_id=dataset.get_data_info(i)['img_id'],
            ori_shape=(HEIGHT, WIDTH),
            pred_instances=pred,
        )
        metric.process({}, [sample])
    metric.evaluate(len(dataset))


def load(dataset) -> None:
    """Load the annotations of every image, as mmdet does."""
    for i in range(len(dataset)):
        info = dataset.get_data_info(i)
        info.update(
            img=np.zeros((HEIGHT, WIDTH, 3), np.uint8),
            ori_shape=(HEIGHT, WIDTH),
            img_shape=(HEIGHT, WIDTH),
        )
        for step in dataset.pipeline.transforms:
            if type(step).__name__ == 'LoadAnnotations':
                step(info)


@pytest.mark.parametrize('name', PLANTS)
def test_what_mmdet_does_itself(files, name):
    cfg = prepared(files, name)
    error = PLANTS[name].error
    if isinstance(error, type):
        with pytest.raises(error):
            build(cfg)
        return
    train, val = build(cfg)

    def use() -> None:
        load(train)
        load(val)
        evaluate(cfg, val)

    if error == 'later':
        with pytest.raises(Exception):  # noqa: B017, PT011  any
            use()
    else:
        use()


def test_sound_files(files):
    root, train, val = files
    write(root, train, val)
    verdicts = judge(config_of(root)).verdicts
    assert [(v.level, v.roles) for v in verdicts] == [
        ('sound', ('train',)),
        ('sound', ('val',)),
    ]
    assert verdicts[0].text == (
        f'{root}/train.json: 8 of 8 images are used, 16 of 16 annotations.'
    )


def test_a_fault_of_testing_alone(files):
    """Training does not look at it, tools/test.py does."""
    root, train, val = files
    write(root, train, val)
    (root / 'test.json').write_text(json.dumps(dict(val, annotations=[])))
    cfg = config_of(root)
    cfg.test_dataloader = copy.deepcopy(cfg.val_dataloader)
    cfg.test_dataloader.dataset.ann_file = 'test.json'
    cfg.test_evaluator = dict(cfg.val_evaluator, ann_file=f'{root}/test.json')
    findings = list(data.check_annotations(cfg, judge(cfg)))
    (finding,) = [f for f in findings if f.level != 'PASS']
    assert finding.level == 'WARN'
    assert finding.text.endswith('tools/test.py refuses it.')
    check_annotation_files(cfg)
    with pytest.raises(DataError, match=r'test\.json: not one of its 0'):
        check_annotation_files(cfg, roles=('test',))
