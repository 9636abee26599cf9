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
    generate_shapes(tmp_path, train=64, val=32, size=(96, 64))
    for split in ('train', 'val'):
        folder = tmp_path / 'images' / split
        coco = COCO(tmp_path / 'annotations' / f'instances_{split}.json')
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


def test_keeps_what_is_complete_and_what_is_not_its_own(tmp_path):
    generate_shapes(tmp_path, **SMALL)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}
    generate_shapes(tmp_path, **SMALL)
    for change in (dict(val=4), dict(seed=1), dict(size=(48, 48))):
        with pytest.raises(DataError, match='Remove it, or choose another'):
            generate_shapes(tmp_path, **SMALL | change)
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}

    for path in ('images/val/000000.png', 'shapes.json'):
        mine = tmp_path / 'mine' / path
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text('mine')
        with pytest.raises(DataError, match='holds something else'):
            generate_shapes(tmp_path / 'mine', **SMALL)
        assert contents(tmp_path / 'mine')[path] == b'mine'


def test_interrupted_run_never_looks_complete(tmp_path, monkeypatch):
    """And the next one begins again, into an empty folder too."""
    generate_shapes(tmp_path / 'reference', **SMALL)
    out = tmp_path / 'out'
    out.mkdir()

    def interrupted(split, *args, **options):
        if split == 'val':
            raise KeyboardInterrupt
        return make_image(split, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(demo_data, 'make_image', interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_shapes(out, **SMALL)
    assert not list(out.iterdir())
    generate_shapes(out, **SMALL)
    assert contents(out) == contents(tmp_path / 'reference')
    assert {p.name for p in tmp_path.iterdir()} == {'reference', 'out'}


def test_bad_arguments(tmp_path):
    for bad in (dict(train=0), dict(val=-3), dict(size=(31, 64))):
        with pytest.raises(ConfigError, match='there must be an image of'):
            generate_shapes(tmp_path / 'out', **SMALL | bad)
    assert not (tmp_path / 'out').exists()


def test_command_line(tmp_path, capsys):
    """Without a warning of modules that are imported twice."""
    out = tmp_path / 'out'
    words = f'-m mmdet_megdet.demo_data {out} --train 3 --val 2'.split()
    words += ['--size', '48', '--seed', '7', '--vary-light']
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True
    )
    assert 'RuntimeWarning' not in done.stderr
    generate_shapes(tmp_path / 'same', 3, 2, (48, 48), 7, True)
    assert contents(out) == contents(tmp_path / 'same')

    for words, said in (
        ([str(tmp_path), '--train', '0'], 'error: train=0, '),
        ([str(out / 'shapes.json')], 'error: [Errno 20] Not a directory'),
    ):
        assert main(words) == 1
        captured = capsys.readouterr().err
        assert said in captured
        assert captured.count('\n') == 1
