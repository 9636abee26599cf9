# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Planted faults: the doctor and training say the same of each.

What mmdet and pycocotools themselves do with a fault stands beside it, and is
tried too: they raise, or go on without a word.
"""

from __future__ import annotations

import copy
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import BaseLoop

from mmdet_megdet.annotations import judge
from mmdet_megdet.errors import DataError
from mmdet_megdet.faults.data import _as_built, check_annotation_files
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


@pytest.fixture
def files(tmp_path):
    """The content of train.json and val.json, to be damaged."""
    return tmp_path, content_of(), content_of(4, first=50)


def of(part, **change):
    """Change an entry of a part of train.json."""

    def damage(train, val):
        train[part][3].update(change)

    return damage


def without(part, key, which=0):
    """Remove a key of an entry of train.json, or of val.json."""

    def damage(*contents):
        del contents[which][part][3][key]

    return damage


def everywhere(part, **change):
    def damage(train, val):
        for entry in train[part]:
            entry.update(change)

    return damage


def in_val(change):
    return lambda train, val: change(val, train)


def set_part(part, value):
    def damage(train, val):
        train[part] = value

    return damage


def reverse(content, _):
    content['categories'].reverse()


def drop_category(content, _):
    content['categories'].pop(0)
    content['annotations'] = content['annotations'][1::2]


def add_category(content, _, **change):
    content['categories'].append(dict(id=9, name='cone') | change)
    content['annotations'][3]['category_id'] = 9


def name_twice(content, _):
    add_category(content, _, name='box')


def repeat(part):
    def damage(train, val):
        train[part][1]['id'] = train[part][0]['id']

    return damage


# Fault, settings of the config, level, words of the verdict, and what mmdet
# and pycocotools do: the error while the data sets are built, while they are
# loaded and evaluated ('later ...'), or None: nothing.
FAULTS = {
    # fields
    'no area': (
        without('annotations', 'area'),
        {},
        'broken',
        'train.json: 1 of annotations have no area: id 103.',
        KeyError,
    ),
    'no box': (
        without('annotations', 'bbox'),
        {},
        'broken',
        'have no bbox: id 103.',
        KeyError,
    ),
    'no id': (
        without('annotations', 'id'),
        {},
        'broken',
        'have no id: entry 3.',
        KeyError,
    ),
    'no width': (
        without('images', 'width'),
        {},
        'broken',
        '1 of images have no width: id 3.',
        KeyError,
    ),
    'no file name': (
        without('images', 'file_name'),
        {},
        'broken',
        'have no file_name: id 3.',
        KeyError,
    ),
    'three numbers': (
        of('annotations', bbox=[1, 2, 3]),
        {},
        'broken',
        'have a bbox that is not four finite numbers [x, y, width, height]: '
        'id 103; the first is [1, 2, 3].',
        ValueError,
    ),
    'box of null': (
        of('annotations', bbox=None),
        {},
        'broken',
        'id 103; the first is None.',
        TypeError,
    ),
    'box of texts': (
        of('annotations', bbox=['1', '2', '3', '4']),
        {},
        'broken',
        'id 103; the first is',
        TypeError,
    ),
    'box with NaN': (
        of('annotations', bbox=[1, float('nan'), 3, 4]),
        {},
        'broken',
        'id 103; the first is [1, nan, 3, 4].',
        None,
    ),
    'width as text': (
        of('images', width='48'),
        {},
        'broken',
        '1 of images have a width that is not a finite number: id 3; the '
        "first is '48'.",
        TypeError,
    ),
    'crowd as text': (
        of('annotations', iscrowd='0'),
        {},
        'broken',
        "have a iscrowd that is not 0 or 1: id 103; the first is '0'.",
        None,
    ),
    'no categories': (
        lambda train, val: train.pop('categories'),
        {},
        'broken',
        "train.json has no list 'categories'.",
        KeyError,
    ),
    'annotations of null': (
        set_part('annotations', None),
        {},
        'broken',
        "train.json has no list 'annotations'.",
        TypeError,
    ),
    'images by id': (
        set_part('images', {'1': {}}),
        {},
        'broken',
        "train.json has no list 'images'.",
        TypeError,
    ),
    # ids
    'image id twice': (
        repeat('images'),
        {},
        'misleading',
        'train.json: 1 id(s) of images occur more than once: 0.',
        None,
    ),
    'annotation id twice': (
        repeat('annotations'),
        {},
        'broken',
        'train.json: 1 id(s) of annotations occur more than once: 100.',
        AssertionError,
    ),
    'category id twice': (
        repeat('categories'),
        {},
        'misleading',
        '1 id(s) of categories occur more than once: 3.',
        None,
    ),
    'unknown image': (
        of('annotations', image_id=99),
        {},
        'misleading',
        '1 annotation(s) belong to an image that the file has not: id 103 '
        '(image 99).',
        None,
    ),
    'image id as text': (
        of('annotations', image_id='1'),
        {},
        'misleading',
        'belong to an image that the file has not: id 103 (image 1).',
        None,
    ),
    'unknown category': (
        of('annotations', category_id=99),
        {},
        'misleading',
        'have a category_id that the file does not name: id 103 (image 1, '
        '1.jpg).',
        None,
    ),
    'width of zero': (
        of('images', width=0),
        {},
        'misleading',
        'have a width or height that is not positive: id 3 (3.jpg).',
        None,
    ),
    # categories
    'order of both files': (
        lambda train, val: (reverse(train, val), reverse(val, train)),
        {},
        'misleading',
        "label 0 is 'disc' in the file and 'box' in the config",
        None,
    ),
    'order of train': (
        reverse,
        {},
        'misleading',
        "label 0 is 'disc' in the file and 'box' in the config",
        None,
    ),
    'order of val': (
        in_val(reverse),
        {},
        'misleading',
        'val.json: its categories are not those of',
        None,
    ),
    'order and classes of val': (
        in_val(reverse),
        dict(val_dataloader__dataset__metainfo__classes=('disc', 'box')),
        'misleading',
        "label 0 is 'disc' there and 'box' in",
        None,
    ),
    'class that train lacks': (
        drop_category,
        {},
        'misleading',
        "train.json has no category 'box'; it has 'disc'.",
        None,
    ),
    'class that val lacks': (
        in_val(drop_category),
        {},
        'misleading',
        "val.json has no category 'box'; it has 'disc'.",
        'later',
    ),
    'one name twice': (
        name_twice,
        {},
        'misleading',
        '2 categories share a name: box (ids 3, 9).',
        None,
    ),
    'category of no class': (
        add_category,
        {},
        'misleading',
        "1 annotation(s) are of the category 'cone', which the config has "
        'not: id 103 (image 1, 1.jpg).',
        None,
    ),
    'category of no class in val': (
        in_val(add_category),
        {},
        'notable',
        "are of the category 'cone', which the config has not: id 203",
        None,
    ),
    'classes as a text': (
        lambda train, val: train['categories'][1].update(name='bo'),
        dict(train_dataloader__dataset__metainfo__classes='box'),
        'misleading',
        "metainfo.classes is the text 'box', within which mmdet looks for "
        "each category's name: it finds ['box', 'bo'].",
        None,
    ),
    'no image folder': (
        lambda train, val: None,
        dict(
            train_dataloader__dataset__data_prefix=dict(
                _delete_=True, img_path=''
            )
        ),
        'broken',
        'train.json: data_prefix of CocoDataset has no img.',
        KeyError,
    ),
    # boxes
    'every box in corners of one': (
        everywhere('annotations', bbox=[0.1, 0.1, 0.5, 0.5]),
        {},
        'broken',
        'train.json: not one of its 16 annotations is left: 16 without area',
        None,
    ),
    'every object a crowd': (
        everywhere('annotations', iscrowd=1),
        {},
        'broken',
        'not one of its 16 annotations is left:',
        None,
    ),
    'every object ignored': (
        everywhere('annotations', ignore=1),
        {},
        'broken',
        'is left: 0 without area, 0 outside their image, 0 of other '
        'categories, 0 of no image, 16 with ignore, 0 crowds.',
        None,
    ),
    'box outside': (
        of('annotations', bbox=[WIDTH, 4, 5, 5]),
        {},
        'misleading',
        '1 annotation(s) have a box that lies outside the image: id 103 '
        '(image 1, 1.jpg).',
        None,
    ),
    'box above': (
        of('annotations', bbox=[4, -9, 5, 9]),
        {},
        'misleading',
        'lies outside the image: id 103',
        None,
    ),
    'box over the edge': (
        of('annotations', bbox=[4, HEIGHT - 5, 5, 9]),
        {},
        'notable',
        'have a box that reaches over the edge of the image: id 103',
        None,
    ),
    'box over the edge by rounding': (
        of('annotations', bbox=[4, HEIGHT - 5, 5, 6]),
        {},
        None,
        '',
        None,
    ),
    'flat box': (
        of('annotations', bbox=[4, 4, 0, 5]),
        {},
        'notable',
        'have a box without area (width, height or area below 1 pixel): id '
        '103',
        None,
    ),
    'no area to speak of': (
        of('annotations', area=0),
        {},
        'notable',
        'have a box without area',
        None,
    ),
    'ignored': (
        of('annotations', ignore=1, bbox=[WIDTH, 4, 5, 5]),
        {},
        None,
        '',
        None,
    ),
    # nothing left
    'no images': (
        set_part('images', []),
        {},
        'broken',
        'train.json has no images.',
        ValueError,
    ),
    'no annotations': (
        set_part('annotations', []),
        dict(train_dataloader__dataset__filter_cfg=None),
        'broken',
        'train.json has no annotations.',
        None,
    ),
    'no image is large enough': (
        lambda train, val: None,
        dict(train_dataloader__dataset__filter_cfg__min_size=33),
        'broken',
        'train.json: not one of its 8 images is left by filter_cfg=',
        ValueError,
    ),
    'no image is chosen': (
        lambda train, val: None,
        dict(train_dataloader__dataset__indices=0),
        'broken',
        'not one of its 8 images is left by',
        ValueError,
    ),
    'an image too many is chosen': (
        lambda train, val: None,
        dict(train_dataloader__dataset__indices=[8]),
        'broken',
        'train.json: indices=[8] is neither a number nor a list',
        IndexError,
    ),
    'no annotations in val': (
        in_val(set_part('annotations', [])),
        {},
        'misleading',
        'val.json has no annotations.',
        None,
    ),
    # masks
    'no mask': (
        without('annotations', 'segmentation'),
        dict(with_mask=True),
        'broken',
        '1 annotation(s) have no segmentation, and the pipeline loads masks: '
        'id 103',
        'later',
    ),
    'no mask where none is loaded': (
        without('annotations', 'segmentation'),
        {},
        None,
        '',
        None,
    ),
    'empty mask': (
        of('annotations', segmentation=[]),
        dict(with_mask=True),
        'broken',
        'have no segmentation, and the pipeline loads masks: id 103',
        'later',
    ),
    'flat list of numbers': (
        of('annotations', segmentation=[1, 2, 3, 4, 5, 6]),
        dict(with_mask=True),
        'broken',
        'have a segmentation that is neither a list of polygons',
        'later',
    ),
    'points of a polygon': (
        of('annotations', segmentation=[[[1, 2], [3, 4], [5, 6]] * 2]),
        dict(with_mask=True),
        'broken',
        'have a segmentation that is neither a list of polygons',
        'later',
    ),
    'two points': (
        of('annotations', segmentation=[[1, 2, 3, 4]]),
        dict(with_mask=True),
        'notable',
        'have no polygon of three points: id 103',
        None,
    ),
    'RLE': (
        of(
            'annotations',
            segmentation=dict(size=[HEIGHT, WIDTH], counts=[1500, 36]),
        ),
        dict(with_mask=True),
        None,
        '',
        None,
    ),
    'RLE of another image': (
        of(
            'annotations',
            segmentation=dict(size=[WIDTH, HEIGHT], counts=[1500, 36]),
        ),
        dict(with_mask=True),
        'broken',
        "have RLE whose size is not [height, width] of the image's entry: id "
        '103',
        'later',
    ),
    # evaluation
    'no iscrowd in val': (
        without('annotations', 'iscrowd', which=1),
        {},
        'broken',
        'val.json: 1 annotation(s) have no iscrowd, which the evaluation '
        'asks for: id 203 (image 51, 51.jpg).',
        'later',
    ),
    'no iscrowd in train': (
        without('annotations', 'iscrowd'),
        {},
        None,
        '',
        None,
    ),
    'annotation ids as texts': (
        in_val(of('annotations', id='a')),
        {},
        'broken',
        'have an id that is no number, which the evaluation asks for: id a',
        'later',
    ),
    'annotation id 0': (
        in_val(of('annotations', id=0)),
        {},
        'notable',
        'have the id 0, by which pycocotools says that nothing matched',
        None,
    ),
    'no mask in val': (
        in_val(without('annotations', 'segmentation')),
        dict(
            with_mask=True,
            val_dataloader__dataset__pipeline=[dict(type='LoadAnnotations')],
        ),
        'broken',
        'have no segmentation that can be evaluated: id 203',
        'later',
    ),
    'evaluation by another file': (
        lambda train, val: None,
        dict(val_evaluator__ann_file='train.json'),
        'broken',
        'train.json, by which CocoMetric evaluates, lacks 4 image(s) of its '
        'data set (',
        'later',
    ),
    'evaluation of images that are not shown': (
        lambda train, val: None,
        dict(val_dataloader__dataset__indices=3),
        'misleading',
        'val.json, by which CocoMetric evaluates, has 1 image(s) that its '
        'data set (',
        None,
    ),
    'evaluation by a file that is not there': (
        lambda train, val: None,
        dict(val_evaluator__ann_file='gone.json'),
        'broken',
        'there is no annotation file',
        'later',
    ),
}


def prepared(files, fault):
    root, train, val = files
    damage, settings, *_ = FAULTS[fault]
    damage(train, val)
    write(root, train, val)
    settings = dict(settings)
    if 'val_evaluator__ann_file' in settings:
        path = root / settings['val_evaluator__ann_file']
        settings['val_evaluator__ann_file'] = str(path)
    return config_of(root, **settings)


@pytest.mark.parametrize('fault', FAULTS)
def test_doctor_and_training_agree(files, fault):
    cfg = prepared(files, fault)
    _, _, level, words, _ = FAULTS[fault]
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


class Loop(BaseLoop):
    def __init__(self, dataset):
        self.dataloader = SimpleNamespace(dataset=dataset)

    def run(self):
        pass


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


@pytest.mark.parametrize('fault', FAULTS)
def test_what_mmdet_does_itself(files, fault):
    """And what DataCheckHook says of what mmdet has built."""
    cfg = prepared(files, fault)
    *_, error = FAULTS[fault]
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
    runner = SimpleNamespace(
        default_scope=SimpleNamespace(scope_name='mmdet'),
        _train_loop=Loop(train),
        _val_loop=Loop(val),
        cfg=cfg,
    )
    assert judge(_as_built(runner)).verdicts == judge(cfg).verdicts


def test_sound_files(files):
    root, train, val = files
    write(root, train, val)
    verdicts = judge(config_of(root)).verdicts
    assert [(v.level, v.roles) for v in verdicts] == [
        ('sound', ('train',)),
        ('sound', ('val',)),
    ]
    assert verdicts[0].text == (
        f'{root}/train.json: 8 of 8 images are used, 16 of 16 annotations (0 '
        'crowds), 2 of 2 categories.'
    )


def test_off_reads_no_file(files, monkeypatch):
    root, train, val = files
    write(root, train, dict(val, annotations=[]))
    cfg = config_of(root)
    monkeypatch.setattr(
        'mmdet_megdet.faults.data.judge',
        lambda *_: pytest.fail('reads'),
    )
    assert check_annotation_files(cfg, mode='off') == []


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
    with pytest.raises(DataError, match=r'test\.json has no annotations'):
        check_annotation_files(cfg, roles=('test',))
