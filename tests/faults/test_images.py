# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import cv2
import numpy as np
import pytest
from mmengine.dataset import BaseDataset, Compose
from mmengine.dataset.dataset_wrapper import RepeatDataset
from torch.utils.data import ConcatDataset, DataLoader

from mmdet_megdet.errors import DataError
from mmdet_megdet.faults.data import (
    CheckedPipeline,
    check_loading,
    innermost,
    is_cut_off,
)


def load(results: dict) -> dict:
    image = cv2.imread(results['img_path'])
    return dict(results, image=image)


class Images(BaseDataset):
    """Data with ids from 7 on."""

    def __init__(self, *paths, pipeline=(load,)):
        self.paths = paths
        super().__init__(pipeline=pipeline, serialize_data=False)

    def load_data_list(self):
        return [
            dict(img_path=str(path), img_id=number)
            for number, path in enumerate(self.paths, 7)
        ]


@pytest.fixture
def files(tmp_path):
    """Whole images, by the ends of their names."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    found = {end: tmp_path / f'whole.{end}' for end in ('jpg', 'png', 'bmp')}
    for path in found.values():
        assert cv2.imwrite(str(path), noise)
    return found


@pytest.mark.parametrize('end', ['jpg', 'png'])
@pytest.mark.parametrize('part', [0.5, 0.99])
def test_cut_off(files, end, part):
    path = files[end]
    assert not is_cut_off(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    assert is_cut_off(path)


def test_opencv_does_not_tell(files):
    """Why it is looked for here."""
    path = files['jpg']
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert cv2.imread(str(path)).shape == (40, 60, 3)


def test_whole_with_more_behind_the_end(files):
    for end in ('jpg', 'png'):
        path = files[end]
        path.write_bytes(path.read_bytes() + bytes(100))
        assert not is_cut_off(path)


def test_nothing_is_said_of_other_files(files, tmp_path):
    assert not is_cut_off(files['bmp'])
    assert not is_cut_off('s3://bucket/image.jpg')
    empty = tmp_path / 'empty.jpg'
    empty.touch()
    assert not is_cut_off(empty)  # OpenCV refuses it


def test_errors_name_the_image_also_from_a_worker(files, tmp_path):
    path = files['jpg']
    path.write_bytes(path.read_bytes()[:500])
    dataset = Images(files['bmp'], path)
    check_loading(dataset)
    text = (
        f'image 8 ({path}): EOFError: the file is cut off, after 500 bytes. '
    )
    assert dataset[0]['image'].shape == (40, 60, 3)
    with pytest.raises(DataError) as caught:
        dataset[1]
    assert str(caught.value).startswith(text)
    with pytest.raises(DataError) as caught:
        list(DataLoader(dataset, num_workers=1, collate_fn=list))
    assert str(caught.value).startswith(text)
    assert 'Caught DataError in DataLoader worker process' in str(caught.value)


@pytest.mark.parametrize(
    ('error', 'text'),
    [
        (
            FileNotFoundError(2, 'No such file', '/data/a.jpg'),
            'image 7: there is no file /data/a.jpg.',
        ),
        (KeyError('bbox'), "image 7 (a.jpg): KeyError: 'bbox'."),
    ],
)
def test_any_error_of_the_pipeline(error, text):
    def fail(_):
        raise error

    dataset = Images('a.jpg', pipeline=[fail])
    check_loading(dataset)
    with pytest.raises(DataError) as caught:
        dataset[0]
    assert str(caught.value).startswith(text)
    assert caught.value.__cause__ is error


def test_inside_wrappers_and_only_once(files):
    parts = [Images(files['jpg']), Images(files['png'])]
    wrapped = ConcatDataset([RepeatDataset(parts[0], times=2), parts[1]])
    assert list(innermost(wrapped)) == parts
    check_loading(wrapped)
    pipelines = [part.pipeline for part in parts]
    assert [type(p) for p in pipelines] == [CheckedPipeline] * 2
    check_loading(wrapped)
    assert [part.pipeline for part in parts] == pipelines
    # What others look for in a pipeline is there.
    assert isinstance(pipelines[0], Compose)
    assert pipelines[0].transforms == [load]
