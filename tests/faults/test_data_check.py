# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import json

import pytest

from mmdet_megdet.errors import ConfigError, DataError
from mmdet_megdet.faults import DataCheckHook
from mmdet_megdet.faults.data import check_annotation_files
from tests.data.image_run import images_config, train_on_images
from tests.data.image_task import write_images
from tests.data.tiny_run import log_of


@pytest.fixture
def path(tmp_path):
    """A file with a category of which the config does not know."""
    folder = tmp_path / 'data'
    content = write_images(folder)
    content['categories'].append(dict(id=7, name='cone'))
    content['annotations'][3]['category_id'] = 7
    content['annotations'][4]['bbox'] = [4, -3, 10, 8]
    path = folder / 'annotations.json'
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def train(path, tmp_path):
    def run(**settings):
        cfg = images_config(path.parent, tmp_path / 'run', **settings)
        return train_on_images(cfg)

    return run


def test_raises_by_default(train, path):
    with pytest.raises(DataError, match="'cone', which the config has not"):
        train()


def test_left_out_on_purpose(train, path, tmp_path):
    """The box that reaches over the edge is told, and so is the category."""
    # Of four iterations' two images one is without a box: the tiny model
    # cannot have that.
    content = json.loads(path.read_text())
    content['annotations'].append(
        dict(content['annotations'][3], id=200, category_id=1)
    )
    path.write_text(json.dumps(content))
    train(default_hooks__data_check__annotations='warn')
    log = log_of(tmp_path / 'run')
    assert f'WARNING - DataCheckHook: {path}: 1 annotation(s) are of' in log
    assert 'reaches over the edge of the image: id 104 (image 4, ' in log


def test_off_reads_no_annotations_but_images(train, path, monkeypatch):
    monkeypatch.setattr(
        'mmdet_megdet.faults.data.judge',
        lambda *_: pytest.fail('reads'),
    )
    # The tiny model needs a box.
    content = json.loads(path.read_text())
    content['annotations'][3]['category_id'] = 1
    path.write_text(json.dumps(content))
    image = path.parent / 'images' / '0.jpg'
    image.write_bytes(image.read_bytes()[:-300])
    with pytest.raises(DataError, match=r'image 0 \(.*cut off'):
        train(default_hooks__data_check__annotations='off')


def test_what_a_tool_has_judged_is_not_read_again(
    train, path, tmp_path, monkeypatch
):
    """And still logged."""
    content = json.loads(path.read_text())
    content['annotations'][3]['category_id'] = 1
    path.write_text(json.dumps(content))
    cfg = images_config(path.parent, tmp_path / 'run')
    assert len(check_annotation_files(cfg)) == 1
    monkeypatch.setattr(
        'mmdet_megdet.faults.data.judge',
        lambda *_: pytest.fail('reads'),
    )
    train()
    assert 'reaches over the edge' in log_of(tmp_path / 'run')


def test_another_size_than_the_file_says(train, path):
    content = json.loads(path.read_text())
    content['annotations'][3]['category_id'] = 1
    content['images'][5]['width'] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r'image 5 \(.*48x32, not 49x32'):
        train()


def test_wrong_option_is_refused():
    with pytest.raises(ConfigError, match="annotations='no' is not"):
        DataCheckHook(annotations='no')


def test_a_worker_that_started_first_names_the_image(tmp_path):
    """Under MMEngine's loop by iteration workers start ahead of hooks."""
    folder = tmp_path / 'data'
    write_images(folder)
    for number in (3, 5):
        image = folder / 'images' / f'{number}.jpg'
        image.write_bytes(image.read_bytes()[:-300])
    cfg = images_config(
        folder,
        tmp_path / 'run',
        train_dataloader__num_workers=1,
        train_dataloader__batch_sampler=None,
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=16, _delete_=True),
    )
    cfg.param_scheduler = None
    del cfg.default_hooks['total_batch']
    with pytest.raises(DataError, match=r'image [35] \(.*cut off'):
        train_on_images(cfg)
