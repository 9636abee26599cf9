# Copyright (c) mmdet_megdet contributors. All rights reserved.
import io
import json

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO
from rich.console import Console

from mmdet_megdet import demo_data as generate
from mmdet_megdet.demo_data import (
    CLASSES,
    METAINFO,
    generate_shapes,
    make_image,
)

SMALL = dict(train=18, val=6, size=(64, 48))


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def generate_and_listen(out, **kwargs):
    console = Console(file=io.StringIO(), width=300)
    generate_shapes(out, **{**SMALL, **kwargs}, console=console)
    return console.file.getvalue()


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return generate_shapes(
        tmp_path_factory.mktemp('shapes'), train=64, val=32, size=(96, 64)
    )


def test_layout(tmp_path):
    paths = generate_shapes(tmp_path / 'a' / 'b', **SMALL)
    out = tmp_path / 'a' / 'b'
    assert paths['train'] == (
        out / 'annotations' / 'instances_train.json',
        out / 'images' / 'train',
    )
    names = [f'images/train/{i:06d}.png' for i in range(18)]
    names += [f'images/val/{i:06d}.png' for i in range(6)]
    names += [f'annotations/instances_{s}.json' for s in ('train', 'val')]
    assert set(contents(out)) == set(names)


def test_same_parameters_same_bytes(tmp_path):
    generate_shapes(tmp_path / 'one', **SMALL)
    generate_shapes(tmp_path / 'two', **SMALL)
    assert contents(tmp_path / 'one') == contents(tmp_path / 'two')


def test_a_image_does_not_depend_on_how_many_there_are(tmp_path):
    few = generate_shapes(tmp_path / 'few', 5, 1, SMALL['size'])
    many = generate_shapes(tmp_path / 'many', 18, 1, SMALL['size'])
    for name, png in contents(few['train'].images).items():
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
        rows, columns = np.nonzero(mask)
        x, y, width, height = annotation['bbox']
        assert (x, y) == (columns.min(), rows.min())
        assert (x + width, y + height) == (
            columns.max() + 1,
            rows.max() + 1,
        )
        is_rle = isinstance(annotation['segmentation'], dict)
        assert is_rle == (annotation['iscrowd'] == 1)
    crowds = [a['image_id'] for a in annotations if a['iscrowd']]
    assert crowds == [i for i in coco.imgs if i % 8 == 3]
    empty = [i for i in coco.imgs if not coco.getAnnIds(i)]
    assert empty == [i for i in coco.imgs if i % 16 == 15]
    assert any(
        len(a['segmentation']) > 1 for a in annotations if not a['iscrowd']
    )


def test_masks_of_a_image_are_disjoint(data):
    coco = COCO(data['train'].annotations)
    for image_id in coco.imgs:
        masks = [
            coco.annToMask(annotation).astype(int)
            for annotation in coco.loadAnns(coco.getAnnIds(image_id))
        ]
        assert not masks or sum(masks).max() == 1


def test_images_on_disk_are_the_images(data):
    for split, paths in data.items():
        coco = COCO(paths.annotations)
        for index, image in coco.imgs.items():
            read = cv2.imread(str(paths.images / image['file_name']))
            expected, _ = make_image(split, index, (96, 64))
            np.testing.assert_array_equal(read[..., ::-1], expected)
            assert read.shape[:2] == (image['height'], image['width'])


def test_kept_if_nothing_changed(tmp_path):
    assert 'train: new.' in generate_and_listen(tmp_path)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}
    message = generate_and_listen(tmp_path)
    assert 'complete with these parameters: kept' in message
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*')}


def test_only_the_changed_split_is_written(tmp_path):
    generate_shapes(tmp_path, **SMALL)
    val = contents(tmp_path / 'images' / 'val')
    train_json = tmp_path / 'annotations' / 'instances_train.json'
    before = train_json.stat().st_mtime_ns
    message = generate_and_listen(tmp_path, val=4)
    assert 'val: images was 6, is now 4' in message
    assert 'train' not in message
    assert train_json.stat().st_mtime_ns == before
    after = contents(tmp_path / 'images' / 'val')
    assert len(after) == 4
    assert after.items() <= val.items()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(seed=1), 'seed was 0, is now 1'),
        (dict(size=(48, 48)), 'width was 64, is now 48'),
        (dict(vary_light=True), 'vary_light was False, is now True'),
    ],
)
def test_changed_parameters_give_the_same_as_a_fresh_run(
    tmp_path, change, message
):
    generate_shapes(tmp_path / 'old', **SMALL)
    assert message in generate_and_listen(tmp_path / 'old', **change)
    generate_shapes(tmp_path / 'new', **{**SMALL, **change})
    assert contents(tmp_path / 'old') == contents(tmp_path / 'new')


def test_missing_image_is_made_again(tmp_path):
    generate_shapes(tmp_path, **SMALL)
    before = contents(tmp_path)
    (tmp_path / 'images' / 'val' / '000002.png').unlink()
    assert 'val: images are missing' in generate_and_listen(tmp_path)
    assert contents(tmp_path) == before


def test_interrupted_run_never_looks_complete(tmp_path, monkeypatch):
    generate_shapes(tmp_path / 'reference', **SMALL, seed=1)
    out = tmp_path / 'out'
    generate_shapes(out, **SMALL)

    def interrupted(split, index, *args):
        if index == 7:
            raise KeyboardInterrupt
        return make_image(split, index, *args)

    with monkeypatch.context() as patch:
        patch.setattr(generate, 'make_image', interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_shapes(out, **SMALL, seed=1)
    # Neither half a split, nor an old one beside a new one.
    assert not list(out.glob('annotations/*'))
    assert 'train: an earlier run was interrupted' in generate_and_listen(
        out, seed=1
    )
    assert contents(out) == contents(tmp_path / 'reference')


def test_refuses_the_data_of_others(tmp_path):
    images = tmp_path / 'images' / 'images' / 'val'
    images.mkdir(parents=True)
    (images / '000000.png').write_bytes(b'mine')
    with pytest.raises(FileExistsError, match='not a data set of this'):
        generate_shapes(tmp_path / 'images', **SMALL)
    assert contents(tmp_path / 'images') == {'images/val/000000.png': b'mine'}
    for text in ('{"info": {"year": 2017}}', '[]', '{', '{"info": null}'):
        folder = tmp_path / 'coco' / 'annotations'
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'instances_train.json').write_text(text)
        with pytest.raises(FileExistsError, match='not written by this gene'):
            generate_shapes(tmp_path / 'coco', **SMALL)
        assert contents(tmp_path / 'coco') == {
            'annotations/instances_train.json': text.encode()
        }


@pytest.mark.parametrize(
    ('bad', 'message'),
    [
        (dict(train=0), 'train=0: the number of images'),
        (dict(val=-3), 'val=-3: the number of images'),
        (dict(size=(31, 64)), r'size=\(31, 64\): width and height'),
        (dict(size=(64, 4097)), 'from 32 to 4096'),
        (dict(seed=-1), 'seed=-1: must be from 0'),
        (dict(seed=2**32), 'seed=4294967296: must be from 0'),
    ],
)
def test_bad_arguments(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        generate_shapes(tmp_path / 'out', **{**SMALL, **bad})
    assert not (tmp_path / 'out').exists()


def test_mmdet_loads_boxes_and_masks(data):
    from mmdet.datasets import CocoDataset
    from mmdet.datasets.transforms import LoadAnnotations
    from mmengine.registry import DefaultScope

    paths = data['train']
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = CocoDataset(
            ann_file=str(paths.annotations),
            data_prefix=dict(img=str(paths.images)),
            metainfo=METAINFO,
            pipeline=[
                dict(type='LoadImageFromFile'),
                dict(type=LoadAnnotations, with_bbox=True, with_mask=True),
            ],
            test_mode=True,
        )
    assert len(dataset) == 64
    coco = COCO(paths.annotations)
    for index in range(64):
        loaded = dataset[index]
        assert loaded['img'].shape == (64, 96, 3)
        expected = coco.loadAnns(coco.getAnnIds(loaded['img_id']))
        assert len(loaded['gt_masks']) == len(expected)
        for mask, box, label, ignored, annotation in zip(
            loaded['gt_masks'].masks,
            loaded['gt_bboxes'].tensor.tolist(),
            loaded['gt_bboxes_labels'],
            loaded['gt_ignore_flags'],
            expected,
            strict=True,
        ):
            np.testing.assert_array_equal(mask, coco.annToMask(annotation))
            x, y, width, height = annotation['bbox']
            assert box == [x, y, x + width, y + height]
            assert label == annotation['category_id'] - 1
            assert ignored == annotation['iscrowd']
