# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from mmengine.dataset import BaseDataset, Compose
from mmengine.dataset.dataset_wrapper import RepeatDataset
from torch.utils.data import ConcatDataset, DataLoader

from mmdet_megdet.errors import DataError
from mmdet_megdet.faults import (
    CheckedPipeline,
    check_annotation_files,
    is_cut_off,
)
from mmdet_megdet.faults.data import check_loading, innermost
from tests.data.image_run import images_config, train_on_images
from tests.data.image_task import write_images
from tests.data.tiny_run import log_of

# Images.


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
def test_cut_off(files, end):
    path = files[end]
    whole = path.read_bytes()
    assert not is_cut_off(path)
    for part in (0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * part)])
        assert is_cut_off(path)
    # Whole, with more behind its end.
    path.write_bytes(whole + bytes(100))
    assert not is_cut_off(path)


def test_errors_name_the_image_also_from_a_worker(files):
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


def test_any_error_of_the_pipeline():
    error = KeyError('bbox')

    def fail(_):
        raise error

    dataset = Images('a.jpg', pipeline=[fail])
    check_loading(dataset)
    with pytest.raises(
        DataError, match=r"image 7 \(a.jpg\): KeyError: 'bbox'"
    ) as caught:
        dataset[0]
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


# Annotation files.


@pytest.fixture
def content(tmp_path):
    """What the annotation file holds; to be changed and written."""
    return write_images(tmp_path / 'data')


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'data' / 'annotations.json'


@pytest.fixture
def config(content, path, tmp_path):
    def make(**settings):
        path.write_text(json.dumps(content))
        return images_config(path.parent, tmp_path / 'run', **settings)

    return make


def add_category(content):
    """One of which the config does not know; its image has another box."""
    content['categories'].append(dict(id=7, name='cone'))
    content['annotations'].append(
        dict(content['annotations'][3], id=200, category_id=7)
    )


def reach_over_the_edge(content):
    content['annotations'][4]['bbox'] = [4, -3, 10, 8]


def cut_off(path, *numbers):
    for number in numbers:
        image = path.parent / 'images' / f'{number}.jpg'
        image.write_bytes(image.read_bytes()[:-300])


def forbid_reading(monkeypatch):
    monkeypatch.setattr(
        'mmdet_megdet.faults.data.judge', lambda *_: pytest.fail('reads')
    )


def test_left_out_on_purpose(config, content, path, tmp_path):
    """The category is told, with a box that reaches over the edge."""
    add_category(content)
    reach_over_the_edge(content)
    with pytest.raises(DataError, match="config has not, 'cone'"):
        train_on_images(config())
    train_on_images(config(default_hooks__data_check__annotations='warn'))
    log = log_of(tmp_path / 'run')
    assert f'WARNING - DataCheckHook: {path}: 1 annotation(s) are of' in log
    assert 'reaches over the edge of the image: id 104 (image 4, ' in log


def test_off_reads_no_annotations_but_images(
    config, content, path, monkeypatch
):
    add_category(content)
    cut_off(path, 0)
    forbid_reading(monkeypatch)
    with pytest.raises(DataError, match=r'image 0 \(.*cut off'):
        train_on_images(config(default_hooks__data_check__annotations='off'))


def test_what_a_tool_has_judged_is_not_read_again(
    config, content, tmp_path, monkeypatch
):
    """And still logged."""
    reach_over_the_edge(content)
    cfg = config()
    assert len(check_annotation_files(cfg)) == 1
    forbid_reading(monkeypatch)
    train_on_images(cfg)
    assert 'reaches over the edge' in log_of(tmp_path / 'run')


def test_another_size_than_the_file_says(config, content):
    content['images'][5]['width'] += 1
    with pytest.raises(DataError, match=r'image 5 \(.*48x32, not 49x32'):
        train_on_images(config())


def test_a_worker_that_started_first_names_the_image(config, path):
    """Under MMEngine's loop by iteration workers start ahead of hooks."""
    cfg = config(
        train_dataloader__num_workers=1,
        train_dataloader__batch_sampler=None,
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=16, _delete_=True),
    )
    cut_off(path, 3, 5)
    cfg.param_scheduler = None
    del cfg.default_hooks['total_batch']
    with pytest.raises(DataError, match=r'image [35] \(.*cut off'):
        train_on_images(cfg)
