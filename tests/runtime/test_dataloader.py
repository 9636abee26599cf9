# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a loader tells of its batch, and workers that start too early."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import hold_workers, image_names, images_per_gpu
from tests.data.tiny_run import by_iteration, tiny_config
from tests.data.tiny_task import TinyImages


def make_runner(folder, sampler, **options):
    options |= dict(dataset=dict(length=12, augment=False))
    options['sampler__type'] = sampler
    options = {f'train_dataloader__{k}': v for k, v in options.items()}
    cfg = tiny_config(folder, 2, 2, **by_iteration(9) | options)
    runner = Runner.from_cfg(cfg)
    return runner, runner.train_loop  # which is built by that


@pytest.mark.parametrize(
    ('sampler', 'persistent'),
    # An epoch of the latter ends in between, and the next begins.
    [('InfiniteSampler', False), ('DefaultSampler', True)],
)
def test_what_is_set_later_reaches_them(
    sampler, persistent, monkeypatch, tmp_path
):
    monkeypatch.setattr('mmengine.runner.loops.time.sleep', lambda _: None)
    plain, plain_loop = make_runner(tmp_path, sampler)
    children = psutil.Process().children
    others = set(children())
    options = dict(num_workers=2, persistent_workers=persistent)
    runner, loop = make_runner(tmp_path, sampler, **options)
    workers = set(children()) - others
    assert len(workers) == 2

    # A data set of COCO's size would be there twice.
    monkeypatch.setattr(TinyImages, '__deepcopy__', pytest.fail, raising=False)
    hold_workers(runner)
    assert not workers & set(children())
    loader = loop.dataloader
    loader.worker_init_fn = lambda number: (tmp_path / str(number)).touch()
    hold_workers(runner)
    assert loop.dataloader is loader
    # Nothing is done without need.
    iterator = plain_loop.dataloader_iterator
    hold_workers(plain)
    assert plain_loop.dataloader_iterator is iterator
    hold_workers(SimpleNamespace(_train_loop=dict(by_epoch=True)))

    # The images are those of a loader without workers, from the first one.
    for _ in range(9):
        wanted, got = next(iterator), next(loop.dataloader_iterator)
        assert torch.equal(got['targets'], wanted['targets'])
    assert (tmp_path / '0').exists()
    assert (tmp_path / '1').exists()


@pytest.mark.parametrize('sampler', ['InfiniteSampler', 'DefaultSampler'])
def test_a_batch_sampler_begins_again_too(sampler, monkeypatch, tmp_path):
    """mmdet's has the batch that it gave last still to clear."""
    monkeypatch.setattr('mmengine.runner.loops.time.sleep', lambda _: None)
    monkeypatch.setattr(TinyImages, 'get_data_info', shape_of, raising=False)
    settings = dict(batch_sampler=dict(type='mmdet.AspectRatioBatchSampler'))
    _, plain = make_runner(tmp_path, sampler, **settings)
    runner, loop = make_runner(tmp_path, sampler, num_workers=1, **settings)
    hold_workers(runner)
    for _ in range(9):
        wanted = next(plain.dataloader_iterator)
        got = next(loop.dataloader_iterator)
        assert torch.equal(got['targets'], wanted['targets'])


def shape_of(dataset, index):
    return dict(width=1 + index % 3, height=2)


def test_what_a_batch_and_its_loader_tell():
    """With the images' paths: tests/distributed/test_data_faults.py."""
    samples = [DetDataSample(metainfo=dict(img_id='x')), DetDataSample()]
    assert image_names((torch.ones(2), samples, 'text')) == ['x']
    by_sampler = DataLoader([1, 2], batch_sampler=[[0], [1]])
    with pytest.raises(ConfigError, match='list has no batch_size'):
        images_per_gpu(by_sampler)
