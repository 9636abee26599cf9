# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The generated data set: its masks, images, files and command line."""

import hashlib
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
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


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


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


def test_valid_coco(tmp_path):
    """Exact masks and boxes, of the classes' colours; PNG loses nothing.

    An image is what make_image says, however many there are.
    """
    paths = generate_shapes(tmp_path, train=64, val=32, size=(96, 64))
    for split, (path, folder) in paths.items():
        coco = COCO(path)
        names = [coco.cats[i]['name'] for i in sorted(coco.cats)]
        assert tuple(names) == CLASSES == METAINFO['classes']
        annotations = coco.dataset['annotations']
        assert [a['id'] for a in annotations] == [
            *range(1, 1 + len(coco.anns))
        ]
        assert {a['category_id'] for a in annotations} == set(coco.cats)
        crowds = [a['image_id'] for a in annotations if a['iscrowd']]
        assert crowds == [i for i in coco.imgs if i % 8 == 3]
        for index, entry in coco.imgs.items():
            image, wanted = make_image(split, index, (96, 64))
            read = cv2.imread(str(folder / entry['file_name']))
            np.testing.assert_array_equal(read[..., ::-1], image)
            assert bool(wanted) == (index % 16 != 15)
            seen = np.zeros((64, 96), int)
            for found, one in zip(coco.imgToAnns[index], wanted, strict=True):
                assert found == found | one
                mask = coco.annToMask(found)
                seen += mask
                assert mask.sum() == found['area'] > 0
                assert found['bbox'] == list(cv2.boundingRect(mask))
                mean = image[mask > 0].mean(axis=0)
                far = np.linalg.norm(METAINFO['palette'] - mean, axis=1)
                assert far.argmin() + 1 == found['category_id']
            assert seen.max() <= 1


@pytest.mark.parametrize(
    'change', [dict(val=4), dict(seed=1), dict(size=(48, 48)), {}]
)
def test_changed_parameters_give_the_same_as_a_fresh_run(tmp_path, change):
    """And so does a missing image; what is complete is kept."""
    for name in ('old', 'new'):
        generate_shapes(tmp_path / name, **SMALL)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}
    generate_shapes(tmp_path / 'old', **SMALL)
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}
    (tmp_path / 'old' / 'images' / 'val' / '000002.png').unlink()
    for name in ('old', 'fresh'):
        generate_shapes(tmp_path / name, **SMALL | change)
    assert contents(tmp_path / 'old') == contents(tmp_path / 'fresh')


def test_interrupted_run_never_looks_complete(tmp_path, monkeypatch):
    changed = SMALL | dict(seed=1)
    generate_shapes(tmp_path / 'reference', **changed)
    out = tmp_path / 'out'
    generate_shapes(out, **SMALL)

    def interrupted(split, index, *args):
        if index == 7:
            raise KeyboardInterrupt
        return make_image(split, index, *args)

    with monkeypatch.context() as patch:
        patch.setattr(demo_data, 'make_image', interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_shapes(out, **changed)
    # Neither half a split, nor an old one beside a new one.
    assert not list(out.glob('annotations/*'))
    generate_shapes(out, **changed)
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
        (dict(val=0), 'val=0: must be from 1 to 999999'),
        (dict(size=(31, 64)), 'width=31: must be from 32 to 4096'),
        (dict(size=(64, 4097)), 'height=4097'),
        (dict(seed=2**32), 'seed=4294967296: must be from 0'),
    ],
)
def test_bad_arguments(tmp_path, bad, message):
    with pytest.raises(ConfigError, match=message):
        generate_shapes(tmp_path / 'out', **SMALL | bad)
    assert not (tmp_path / 'out').exists()


def test_command_line(tmp_path, capsys):
    """Without a warning of modules that are imported twice."""
    words = f'-m mmdet_megdet.demo_data {tmp_path} --train 3 --val 2'.split()
    words += ['--size', '48', '--seed', '7', '--vary-light']
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True
    )
    assert 'RuntimeWarning' not in done.stderr
    path = tmp_path / 'annotations' / 'instances_val.json'
    assert f'{path}  {tmp_path}/images/val/\n' in done.stdout
    info = json.loads(path.read_text())['info']
    wanted = dict(images=2, width=48, height=48, seed=7, vary_light=True)
    assert info == info | wanted
    assert main([str(tmp_path), '--train', '0']) == 1
    assert main([str(path)]) == 1
    refused, in_the_way = capsys.readouterr().err.splitlines()
    assert refused.startswith('error: train=0: must be')
    assert f'File exists: {str(path)!r}' in in_the_way
