# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Losses, images, annotations, memory and ranks that are not right."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.data import image_run
from tests.data.image_task import HEIGHT, WIDTH, write_images
from tests.data.tiny_run import log_of
from tests.distributed.faults import Run
from tests.distributed.ranks import run_ranks


@pytest.fixture
def images(tmp_path):
    """A folder of sound images."""
    folder = tmp_path / 'data'
    write_images(folder)
    return folder


@pytest.fixture
def train(tmp_path, images):
    """Trains on the images, on two ranks; returns what they printed."""

    def run(torchrun=False, **settings):
        settings |= dict(config=image_run.CONFIG, torchrun=torchrun)
        settings['train_dataloader__dataset__data_root'] = f'{images}/'
        statuses, logs = Run(tmp_path / 'run', **settings).finish()
        assert set(statuses) == {1}
        assert torchrun or 'Traceback' not in ''.join(logs)
        return logs

    return run


def test_nan_on_one_rank_stops_all(train):
    fault = dict(model__fault='pixel', model__fault_rank=1)
    for log in train(**fault, model__fault_iterations='2,'):
        assert 'in epoch 1, update 3 of 4: ' in log
        # Through the synchronised statistics it is in the losses of both.
        assert 'loss_corner[0] is nan' in log
        assert 'loss_size is nan' in log
        assert re.search(
            r'on rank 1, with images (\d+) \(\S+/\1.jpg\), (\d+) \(', log
        )


def _train_and_skip(rank: int, world_size: int, data: Path, work_dir: Path):
    cfg = image_run.images_config(
        data,
        work_dir,
        default_hooks__finite_loss__on_failure='skip',
        # Nothing else brings it to the other rank.
        model__fault='loss',
        model__fault_rank=1,
        model__fault_iterations=(1,),
        custom_hooks=[dict(type='EMAHook')],
    )
    _, states = image_run.train_on_images(cfg)
    return [image_run.changed(*pair) for pair in pairwise(states)], states[-1]


def test_infinity_on_one_rank_skipped_by_all(images, tmp_path):
    results = run_ranks(_train_and_skip, 2, images, tmp_path / 'run')
    everything = {'weights', 'buffers', 'momenta', 'ema'}
    for steps, _ in results:
        assert steps == [everything, {'ema'}, everything, everything]
    assert image_run.changed(results[0][1], results[1][1]) == set()
    said = 'loss_corner[1] is inf on rank 1, with images '
    assert said in log_of(tmp_path / 'run')


def test_image_cut_off(train, images):
    """OpenCV alone would fill it up; torchrun ends the rank that waits."""
    path = images / 'images' / '13.jpg'
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (log,) = train(torchrun=True)
    assert (
        f'error: image 13 ({path}): EOFError: the file is cut off, after '
        f'{len(whole) // 2} bytes'
    ) in log
    # Whichever has it.
    told = r'rank \d of 2 fails in epoch 1, update .*DataError: image 13 '
    assert re.search(told, log)


def test_annotations_that_would_be_left_out(train, images):
    path = images / 'annotations.json'
    content = json.loads(path.read_text())
    content['categories'].append(dict(id=7, name='cone'))
    content['annotations'][3]['category_id'] = 7
    content['annotations'][5]['bbox'] = [WIDTH + 1, 4, 10, 8]
    content['annotations'][8]['bbox'] = [4, HEIGHT - 4, 10, 8]
    path.write_text(json.dumps(content))
    for log in train():
        assert f'{path}: 1 annotation(s) are of categories that the ' in log
        assert "config has not, 'cone': id 103 (image 3, 3.jpg)." in log
        assert 'lies outside the image: id 105 (image 5, 5.jpg).' in log
        # mmdet does use that one.
        assert 'id 108' not in log


def test_out_of_memory(train):
    """Two ranks, two images each, two micro-steps an update."""
    (log,) = train(
        torchrun=True,
        model__fault='memory',
        model__fault_rank=1,
        model__fault_iterations='1,',
        default_hooks__total_batch__total_batch_size=8,
    )
    assert 'CUDA out of memory. Tried to allocate 2.00 GiB.' in log
    assert 'Memory ran out with 2 image(s) per GPU on rank 1. With 1 ' in log
    assert 'the batch of 8 images stays' in log
    assert 'tools/train.py CONFIG --images-per-gpu 1\n' in log
    rows = [line.split() for line in log.splitlines()]
    assert ['images', 'per', 'GPU', '2', '1'] in rows
    assert ['total', 'batch', '8', 'images', '8', 'images'] in rows


def test_ranks_that_differ_are_refused(train, tmp_path, monkeypatch):
    """Rank 1 has another mmdet, and another learning rate by a variable."""
    monkeypatch.setenv('UNEQUAL', '1')
    for log in train():
        assert 'error: the ranks do not run the same: ' in log
        assert 'mmdet is 3.3.0 on rank 0 and 3.2.0 on rank 1' in log
        assert 'optimizer.lr is 0.05 on rank 0 and 0.3 on rank 1' in log
    # Ahead of the model.
    assert not list((tmp_path / 'run').glob('*/*.log'))
