# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The generated data set: its masks, images, files and command line."""

import hashlib
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO

from mmdet_megdet import demo_data
from mmdet_megdet.demo_data import (
    CLASSES,
    METAINFO,
    generate_shapes,
    main,
    make_image,
)
from mmdet_megdet.errors import ConfigError, DataError

SMALL = dict(train=18, val=6, size=(64, 48))


def test_pixels_and_annotations_are_those_of_version_1():
    """Whoever changes one raises GENERATOR_VERSION with this digest."""
    found = hashlib.sha256()
    for split, size, seed, light in (
        ('train', (128, 128), 0, False),
        ('val', (96, 64), 7, True),
        ('train', (33, 300), 7, True),
    ):
        for index in range(33):
            image, annotations = make_image(split, index, size, seed, light)
            found.update(image.tobytes())
            found.update(json.dumps(annotations, sort_keys=True).encode())
    assert demo_data.GENERATOR_VERSION == 1
    assert found.hexdigest() == (
        '6aa386fcea5f705703f8b5662e889ebb16f64941d98ce320e18d46715b6ce9a9'
    )


def decode(segmentation, shape):
    if isinstance(segmentation, list):
        parts = mask_utils.frPyObjects(segmentation, *shape)
        segmentation = mask_utils.merge(parts)
    return mask_utils.decode(segmentation)


@pytest.mark.parametrize('size', [(32, 32), (32, 300), (640, 33)])
def test_any_size_holds_objects_and_crowds(size):
    for index in (0, 3):
        _, annotations = make_image('train', index, size)
        assert min(annotation['area'] for annotation in annotations) > 0


def test_objects_have_the_colour_of_their_class():
    for index in range(10):
        image, annotations = make_image('train', index, (128, 128))
        for annotation in annotations:
            if annotation['iscrowd']:
                continue
            mask = decode(annotation['segmentation'], (128, 128))
            mean = image[mask > 0].mean(axis=0)
            distance = np.linalg.norm(METAINFO['palette'] - mean, axis=1)
            assert distance.argmin() + 1 == annotation['category_id']


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return generate_shapes(
        tmp_path_factory.mktemp('shapes'), train=64, val=32, size=(96, 64)
    )


def test_images_do_not_depend_on_how_many_there_are(tmp_path):
    few = generate_shapes(tmp_path / 'few', 5, 1, SMALL['size'])
    many = generate_shapes(tmp_path / 'many', 18, 1, SMALL['size'])
    assert few['train'] == (
        tmp_path / 'few' / 'annotations' / 'instances_train.json',
        tmp_path / 'few' / 'images' / 'train',
    )
    found = contents(few['train'].images)
    assert list(found) == [f'{i:06d}.png' for i in range(5)]
    for name, png in found.items():
        assert (many['train'].images / name).read_bytes() == png
    few, many = (
        json.loads(paths['train'].annotations.read_text())
        for paths in (few, many)
    )
    number = len(few['annotations'])
    assert few['annotations'] == many['annotations'][:number]
    assert few['images'] == many['images'][:5]


@pytest.mark.parametrize('split', ['train', 'val'])
def test_valid_coco(data, split):
    coco = COCO(data[split].annotations)
    names = [coco.cats[i]['name'] for i in sorted(coco.cats)]
    assert tuple(names) == CLASSES == METAINFO['classes']
    annotations = list(coco.anns.values())
    assert len(annotations) == len(coco.dataset['annotations'])
    assert min(coco.anns) == 1
    assert {a['category_id'] for a in annotations} == set(coco.cats)
    for annotation in annotations:
        mask = coco.annToMask(annotation)
        assert mask.sum() == annotation['area'] > 0
        assert annotation['bbox'] == list(cv2.boundingRect(mask))
    crowds = [a['image_id'] for a in annotations if a['iscrowd']]
    assert crowds == [i for i in coco.imgs if i % 8 == 3]
    for index, image in coco.imgs.items():
        own = coco.loadAnns(coco.getAnnIds(index))
        assert bool(own) == (index % 16 != 15)
        masks = [coco.annToMask(annotation).astype(int) for annotation in own]
        assert not masks or sum(masks).max() == 1
        read = cv2.imread(str(data[split].images / image['file_name']))
        expected, _ = make_image(split, index, (96, 64))
        np.testing.assert_array_equal(read[..., ::-1], expected)


def test_kept_if_nothing_changed(tmp_path):
    generate_shapes(tmp_path, **SMALL)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}
    generate_shapes(tmp_path, **SMALL)
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}


@pytest.mark.parametrize(
    'change', [dict(val=4), dict(seed=1), dict(size=(48, 48)), {}]
)
def test_changed_parameters_give_the_same_as_a_fresh_run(tmp_path, change):
    """And so does a missing image."""
    generate_shapes(tmp_path / 'old', **SMALL)
    (tmp_path / 'old' / 'images' / 'val' / '000002.png').unlink()
    for name in ('old', 'new'):
        generate_shapes(tmp_path / name, **{**SMALL, **change})
    assert contents(tmp_path / 'old') == contents(tmp_path / 'new')


def test_interrupted_run_never_looks_complete(tmp_path, monkeypatch):
    generate_shapes(tmp_path / 'reference', **SMALL, seed=1)
    out = tmp_path / 'out'
    generate_shapes(out, **SMALL)

    def interrupted(split, index, *args):
        if index == 7:
            raise KeyboardInterrupt
        return make_image(split, index, *args)

    with monkeypatch.context() as patch:
        patch.setattr(demo_data, 'make_image', interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_shapes(out, **SMALL, seed=1)
    # Neither half a split, nor an old one beside a new one.
    assert not list(out.glob('annotations/*'))
    generate_shapes(out, **SMALL, seed=1)
    assert contents(out) == contents(tmp_path / 'reference')


@pytest.mark.parametrize(
    ('path', 'text'),
    [
        ('images/val/000000.png', 'mine'),
        ('annotations/instances_train.json', '{"info": {"year": 2017}}'),
        ('annotations/instances_train.json', '[]'),
        ('annotations/instances_train.json', '{'),
    ],
)
def test_refuses_the_data_of_others(tmp_path, path, text):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    with pytest.raises(DataError, match='not written by this gene'):
        generate_shapes(tmp_path, **SMALL)
    assert contents(tmp_path) == {path: text.encode()}


@pytest.mark.parametrize(
    ('bad', 'message'),
    [
        (dict(train=0), 'train=0: must be from 1 to 999999'),
        (dict(val=-3), 'val=-3'),
        (dict(size=(31, 64)), 'width=31: must be from 32 to 4096'),
        (dict(size=(64, 4097)), 'height=4097'),
        (dict(seed=-1), 'seed=-1: must be from 0'),
        (dict(seed=2**32), 'seed=4294967296'),
    ],
)
def test_bad_arguments(tmp_path, bad, message):
    with pytest.raises(ConfigError, match=message):
        generate_shapes(tmp_path / 'out', **{**SMALL, **bad})
    assert not (tmp_path / 'out').exists()


def test_command_line(tmp_path):
    """Without a warning of modules that are imported twice."""
    command = [sys.executable, '-m', 'mmdet_megdet.demo_data', str(tmp_path)]
    command += ['--train', '3', '--val', '2', '--size', '48', '--seed', '7']
    command += ['--vary-light']
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert 'RuntimeWarning' not in done.stderr
    assert 'instances_val.json' in done.stdout
    assert len(list(tmp_path.rglob('*.png'))) == 5
    path = tmp_path / 'annotations' / 'instances_val.json'
    info = json.loads(path.read_text())['info']
    assert (info['width'], info['height']) == (48, 48)
    assert info['seed'] == 7
    assert info['vary_light'] is True


def test_errors_are_one_line(tmp_path, capsys):
    (tmp_path / 'file').touch()
    for words, said in (
        ([str(tmp_path), '--train', '0'], 'error: train=0: must be'),
        ([str(tmp_path / 'file')], str(tmp_path / 'file')),
    ):
        assert main(words) == 1
        captured = capsys.readouterr().err
        assert said in captured
        assert captured.count('\n') == 1
