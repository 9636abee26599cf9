# Copyright (c) mmdet_megdet contributors. All rights reserved.
import json
import os
import re

import cv2
import numpy as np
import pytest
from mmengine.dataset import Compose
from mmengine.dataset.dataset_wrapper import RepeatDataset
from mmengine.registry import DATASETS
from torch.utils.data import ConcatDataset, DataLoader

from mmdet_megdet.errors import DataError
from mmdet_megdet.faults.data import (
    check_annotation_files,
    check_loading,
    is_cut_off,
)
from tests.data.image_run import images_config, train_on_images
from tests.data.image_task import write_images
from tests.data.tiny_run import by_iteration, log_of


@pytest.mark.parametrize('end', ['jpg', 'png'])
def test_cut_off(tmp_path, end):
    path = tmp_path / f'image.{end}'
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    assert cv2.imwrite(str(path), noise)
    whole = path.read_bytes()
    assert not is_cut_off(path)
    for part in (0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * part)])
        assert is_cut_off(path)
    # Whole, with more behind its end.
    path.write_bytes(whole + bytes(100))
    assert not is_cut_off(path)


@pytest.fixture
def content(tmp_path):
    """What the annotation file holds; to be changed.

    A category of which the config does not know, and a box over the edge.
    """
    content = write_images(tmp_path / 'data')
    content['categories'].append(dict(id=7, name='cone'))
    content['annotations'][4]['bbox'] = [4, -3, 10, 8]
    cone = dict(content['annotations'][3], id=200, category_id=7)
    content['annotations'].append(cone)
    return content


@pytest.fixture
def config(content, tmp_path):
    def make(annotations, **settings):
        data = tmp_path / 'data'
        (data / 'annotations.json').write_text(json.dumps(content))
        settings['default_hooks__data_check__annotations'] = annotations
        return images_config(data, tmp_path / 'run', **settings)

    return make


def cut_off(tmp_path, number):
    os.truncate(tmp_path / 'data' / 'images' / f'{number}.jpg', 800)


def test_errors_name_the_image_also_from_a_worker(config, tmp_path):
    dataset = DATASETS.build(config('off').train_dataloader.dataset)
    transforms = dataset.pipeline.transforms
    check_loading(ConcatDataset([RepeatDataset(dataset, times=2)]))
    # What others look for in a pipeline is there.
    assert isinstance(dataset.pipeline, Compose)
    assert dataset.pipeline.transforms == transforms

    cut_off(tmp_path, 8)
    path = dataset.get_data_info(8)['img_path']
    text = f'image 8 ({path}): EOFError: the file is cut off, after 800 bytes.'
    assert dataset[0]['inputs'].shape == (3, 32, 48)
    with pytest.raises(DataError, match='^' + re.escape(text)):
        dataset[8]
    with pytest.raises(DataError, match='^' + re.escape(text)) as caught:
        list(DataLoader(dataset, num_workers=1, collate_fn=list))
    assert 'Caught DataError in DataLoader worker process' in str(caught.value)
    os.remove(path)
    told = r'image 8 \(.*\): FileNotFoundError: '
    with pytest.raises(DataError, match=told) as caught:
        dataset[8]
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_one_process_has_no_rank_to_name(config, tmp_path):
    cfg = config('raise')
    (tmp_path / 'data' / 'annotations.json').unlink()
    with pytest.raises(DataError, match=r'^(?!rank 0)'):
        check_annotation_files(cfg)


def forbid_reading(monkeypatch):
    monkeypatch.setattr(
        'mmdet_megdet.faults.data.judge', lambda *_: pytest.fail('reads')
    )


def test_what_a_tool_has_judged_is_not_read_again(
    config, content, tmp_path, monkeypatch
):
    """What is left out on purpose too. Then comes an image of another size."""
    content['images'][5]['width'] += 1
    cfg = config('warn')
    assert len(check_annotation_files(cfg)) == 2
    forbid_reading(monkeypatch)
    with pytest.raises(DataError, match=r'image 5 \(.*48x32, not 49x32'):
        train_on_images(cfg)
    log = log_of(tmp_path / 'run')
    path = tmp_path / 'data' / 'annotations.json'
    assert f'WARNING - DataCheckHook: {path}: 1 annotation(s) are of' in log
    assert 'reaches over the edge of the image: id 104 (image 4, ' in log


EARLY = by_iteration(16) | dict(
    train_dataloader__num_workers=1,
    default_hooks__total_batch=None,
    default_hooks__preemption=None,  # which holds workers, too
)


@pytest.mark.parametrize('settings', [{}, EARLY])
def test_off_reads_no_annotations_but_images(
    config, tmp_path, monkeypatch, settings
):
    """Also in workers that start ahead of the hook."""
    cut_off(tmp_path, 3)
    forbid_reading(monkeypatch)
    with pytest.raises(DataError, match=r'image 3 \(.*cut off'):
        train_on_images(config('off', **settings))
