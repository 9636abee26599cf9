# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Annotation files and pictures, good ones and damaged ones."""

from __future__ import annotations

import copy
import json
import sys
from functools import partial

import pytest
from mmengine.config import Config
from PIL import Image

from mmdet_megdet.datasets.generate import generate_shapes
from tests.tools.checks.findings import levels
from tests.tools.command import ROOT, TINY_CONFIG, TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import data
from checks.annotations import check_annotations
from checks.pictures import check_pictures
from checks.report import FAIL, PASS, WARN

CONFIG = ROOT / 'configs' / 'megdet' / 'shapes_r18_fpn.py'
PICTURES = 24
CLASSES = ('circle', 'square', 'triangle', 'star', 'ring')


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    """The generated data set, not to be changed."""
    root = tmp_path_factory.mktemp('shapes')
    generate_shapes(root, train=PICTURES, val=4, size=(128, 128))
    return root


@pytest.fixture(scope='module')
def train_set(shapes):
    return data.DataSet(
        'train',
        shapes / 'annotations' / 'instances_train.json',
        shapes / 'images' / 'train',
        CLASSES,
        True,
        {},
    )


@pytest.fixture
def content(train_set):
    """Its annotation file, to be damaged."""
    return json.loads(train_set.annotations.read_text())


def damage_ids(content):
    content['images'][1]['id'] = content['images'][0]['id']


def damage_references(content):
    content['annotations'][0]['image_id'] = 10**6


def damage_fields(content):
    del content['images'][2]['width']


def damage_emptiness(content):
    content['annotations'] = []


def damage_category(content):
    content['categories'] = content['categories'][:-1]
    content['annotations'] = [
        a for a in content['annotations'] if a['category_id'] < 5
    ]


def damage_order(content):
    content['categories'].reverse()


def damage_box(content):
    content['annotations'][0]['bbox'][0] = float('nan')


def damage_masks(content):
    content['annotations'][0]['segmentation'] = []


@pytest.mark.parametrize(
    ('damage', 'text'),
    [
        (damage_ids, '1 ids of images occur more than once'),
        (damage_references, '1 annotations name a image_id that the file'),
        (damage_fields, '1 of images lack id or file_name or width'),
        (damage_emptiness, 'the file has no annotations'),
        (damage_category, 'the file has no category ring'),
        (damage_order, "label 0 is 'ring' in the file and 'circle' in the"),
        (damage_box, '1 are not four numbers'),
        (damage_masks, '1 annotations have no segmentation'),
    ],
)
def test_annotations_that_would_stop_or_mislead(
    train_set, content, damage, text
):
    assert FAIL not in levels(check_annotations(train_set, content))
    damage(content)
    findings = check_annotations(train_set, content)
    assert text in next(f.text for f in findings if f.level == FAIL)


def test_annotations_that_are_left_out(train_set, content):
    boxes = [a for a in content['annotations'] if not a['iscrowd']]
    boxes[0]['bbox'][2] = 0
    boxes[1]['area'] = 0
    boxes[2]['bbox'][0] = 500
    boxes[3]['bbox'][0] = -5
    content['categories'].append(dict(id=9, name='cloud'))
    content['annotations'].append(copy.deepcopy(boxes[4]))
    content['annotations'][-1] |= dict(id=10**6, category_id=9)
    findings = list(check_annotations(train_set, content))
    texts = [f.text for f in findings if f.level == WARN]
    assert [text.split(':')[0] for text in texts] == [
        '1 are not among the classes, and their 1 annotations are left out',
        '2 have no area (width, height or area below 1 pixel)',
        '1 lie outside their picture',
        '1 reach over the edge of their picture',
    ]
    counted = next(f.text for f in findings if f.text.endswith('objects'))
    crowds = sum(a['iscrowd'] for a in content['annotations'])
    used = {a['image_id'] for a in content['annotations']}
    assert counted == (
        f'{len(content["annotations"]) - 4} lie well in their pictures; '
        f'{crowds} crowds, {PICTURES - len(used)} pictures without objects'
    )


def test_annotation_files_that_cannot_be_read(tmp_path, train_set):
    file = tmp_path / 'a.json'
    data_set = train_set._replace(annotations=file)
    assert 'there is no file' in data.read_annotations(data_set).text
    for text, message in (
        ('', '(0 bytes) cannot be read'),
        ('[]', 'has no list images, annotations, categories'),
        ('{"images": [], "annotations": []}', 'has no list categories'),
    ):
        file.write_text(text)
        assert message in data.read_annotations(data_set).text


def test_pictures(tmp_path, train_set, content):
    for image in content['images']:
        name = image['file_name']
        (tmp_path / name).symlink_to(train_set.pictures / name)
    data_set = train_set._replace(pictures=tmp_path)
    check = partial(check_pictures, data_set, content)
    assert levels(check(None, True)) == [PASS]
    names = [image['file_name'] for image in content['images']]
    whole = (tmp_path / names[0]).read_bytes()
    for name in names[:4]:
        (tmp_path / name).unlink()
    (tmp_path / names[1]).write_bytes(whole[: len(whole) // 2])
    (tmp_path / names[2]).write_bytes(b'')
    Image.new('RGB', (128, 64)).save(tmp_path / names[3])
    texts = [f.text for f in check(None, False) if f.level == FAIL]
    assert texts[0].startswith(
        f'1 of {PICTURES} are not there: {names[0]} (id'
    )
    # A truncated picture has a good header.
    assert texts[1].startswith(f'1 of {PICTURES} cannot be read: {names[2]}')
    assert texts[2].endswith('128x64, not 128x128')
    texts = [f.text for f in check(None, True) if f.level == FAIL]
    assert f'2 of {PICTURES} cannot be read: {names[1]}' in texts[1]
    # Six, spread evenly: 0, 4, 8...
    texts = [f.text for f in check(6, False)]
    assert texts == [texts[0]]
    assert texts[0].startswith('1 of 6 are not there')


def test_a_picture_that_exif_turns(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (40, 30)).save(tmp_path / 'a.jpg', exif=exif)
    data_set = data.DataSet('train', tmp_path, tmp_path, (), False, {})
    image = dict(id=1, file_name='a.jpg', width=30, height=40)
    assert levels(
        check_pictures(data_set, dict(images=[image]), None, False)
    ) == [PASS]
    image.update(width=40, height=30)
    (finding,) = check_pictures(data_set, dict(images=[image]), None, False)
    assert '30x40, turned by EXIF, not 40x30' in finding.text


def test_data_sets_inside_others(shapes, monkeypatch):
    monkeypatch.setenv('SHAPES_ROOT', str(shapes))
    cfg = Config.fromfile(CONFIG)
    assert data.training_epoch(cfg) == (PICTURES, False)
    assert data.classes(cfg)[0] == 'circle'
    inner = cfg.train_dataloader.dataset
    wrapped = dict(type='RepeatDataset', times=2, dataset=inner)
    cfg.train_dataloader.dataset = wrapped
    assert data.training_epoch(cfg) is None
    both = dict(type='ConcatDataset', datasets=[inner, wrapped])
    assert list(data.data_sets(both)) == [inner, inner]
    tiny = Config.fromfile(TINY_CONFIG)
    findings = list(data.check_data(tiny, None, False))
    assert levels(findings) == [WARN, WARN, WARN]
    assert 'TinyPictures with ann_file=None' in findings[0].text


def test_pictures_of_an_epoch(tmp_path, content):
    """mmdet leaves out what is too small, and what has no object."""
    content['images'][0].update(width=20)
    content['images'][1].update(width=100)
    empty = content['images'][2]['id']
    content['annotations'] = [
        a for a in content['annotations'] if a['image_id'] != empty
    ]
    used = {a['image_id'] for a in content['annotations']}
    used.discard(content['images'][0]['id'])
    (tmp_path / 'a.json').write_text(json.dumps(content))
    dataset = dict(
        type='CocoDataset',
        data_root=str(tmp_path),
        ann_file='a.json',
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        metainfo=dict(
            classes=('circle', 'square', 'triangle', 'star', 'ring')
        ),
    )
    cfg = Config(dict(train_dataloader=dict(dataset=dataset)))
    assert data.training_epoch(cfg) == (len(used), True)
