# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import json

import pytest
from mmdet.datasets import CocoDataset

from mmdet_megdet.runtime.annotation_files import (
    configured_files,
    find_problems,
    unreadable,
)
from tests.data.picture_task import HEIGHT, WIDTH, write_pictures

CLASSES = ('box', 'disc')


@pytest.fixture
def content(tmp_path):
    return write_pictures(tmp_path / 'data')


@pytest.fixture
def problems(tmp_path, content):
    """Writes the changed content and looks for problems."""
    path = tmp_path / 'data' / 'annotations.json'

    def find(classes=CLASSES):
        path.write_text(json.dumps(content))
        return [
            (problem.text.removeprefix(f'{path}'), problem.grave)
            for problem in find_problems(path, classes)
        ]

    return find


def test_sound_file(problems):
    assert problems() == []


FOURTH = 'id 103 (image 3, 3.jpg).'
OUTSIDE = ': 1 annotation(s) have a box that lies outside the picture: '
OVER = (
    ': 1 annotation(s) have a box that reaches over the edge of the picture: '
)
FLAT = ': 1 annotation(s) have a box without area, and are left out: '


@pytest.mark.parametrize(
    ('change', 'problem'),
    [
        (dict(bbox=[WIDTH, 4, 5, 5]), (OUTSIDE + FOURTH, True)),
        (dict(bbox=[4, -9, 5, 9]), (OUTSIDE + FOURTH, True)),
        (dict(bbox=[float('nan'), 4, 5, 5]), (OUTSIDE + FOURTH, True)),
        (dict(bbox=[WIDTH - 3, 4, 5, 5]), (OVER + FOURTH, False)),
        (dict(bbox=[4, -2, 5, 9]), (OVER + FOURTH, False)),
        (dict(bbox=[4, HEIGHT - 5, 5, 6]), None),  # by one pixel
        (dict(bbox=[4, 4, 0, 5]), (FLAT + FOURTH, False)),
        (dict(area=0), (FLAT + FOURTH, False)),
        (
            dict(category_id=9),
            (
                ': 1 annotation(s) have a category_id that the file does not '
                f'name: {FOURTH}',
                True,
            ),
        ),
        (
            dict(image_id=99),
            (
                ': 1 annotation(s) belong to a picture that the file has '
                'not: id 103 (image 99).',
                True,
            ),
        ),
        # mmdet leaves that one out on purpose.
        (dict(ignore=1, bbox=[WIDTH, 4, 5, 5]), None),
    ],
)
def test_one_annotation(problems, content, change, problem):
    content['annotations'][3] |= change
    assert problems() == ([] if problem is None else [problem])


def test_category_that_the_config_lacks(problems):
    """Every second; five of them are named."""
    ((text, grave),) = problems(classes=('box',))
    assert grave
    assert text.startswith(
        ": 8 annotation(s) are of the category 'disc', which the config has "
        'not: id 101 (image 1, 1.jpg), id 103 '
    )
    assert text.endswith('id 109 (image 9, 9.jpg) and 3 more.')


@pytest.mark.parametrize('part', ['images', 'annotations'])
def test_nothing_in_it(problems, content, part):
    content[part] = []
    name = 'pictures' if part == 'images' else part
    assert problems() == [(f' has no {name}.', True)]


def test_mmdet_says_nothing(tmp_path, content):
    """Why it is looked for here: of these four annotations none is left."""
    for number, change in enumerate(
        (dict(bbox=[WIDTH, 4, 5, 5]), dict(category_id=9))
    ):
        content['annotations'][number] |= change
    for annotation in content['annotations'][2:4]:
        annotation['category_id'] = 3
    content['categories'].append(dict(id=3, name='cone'))
    path = tmp_path / 'data' / 'annotations.json'
    path.write_text(json.dumps(content))
    dataset = CocoDataset(
        ann_file=str(path),
        data_prefix=dict(img=''),
        metainfo=dict(classes=CLASSES),
        pipeline=[],
    )
    counts = [len(dataset.get_data_info(i)['instances']) for i in range(16)]
    assert counts == [0] * 4 + [1] * 12


def test_unreadable(tmp_path, content):
    path = tmp_path / 'data' / 'annotations.json'
    assert unreadable(path) is None
    whole = path.read_text()
    path.write_text(whole + '\n')
    assert unreadable(path) is None
    path.write_text(whole[:-10])
    assert f'{path} is cut off, after {len(whole) - 10} bytes' in unreadable(
        path
    )
    path.write_text('')
    assert f'{path} is empty (0 bytes)' in unreadable(path)
    path.unlink()
    assert f'no annotation file {path}' in unreadable(path)


def test_files_of_a_config():
    plain = dict(ann_file='a.json', data_root='data/')
    remote = dict(plain, backend_args=dict(backend='petrel'))
    address = dict(ann_file='b.json', data_root='s3://bucket/')
    text = dict(ann_file='list.txt', data_root='data/')
    local = dict(ann_file='/c.json')
    wrapped = dict(dataset=dict(datasets=[remote, address, text, local]))
    assert list(configured_files(plain)) == ['data/a.json']
    assert list(configured_files(wrapped)) == ['/c.json']
    assert list(configured_files(None)) == []
