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

told = 'nothing'


class Words:
    """Pairs of an index and what the process that loads it was told."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, told

    def __deepcopy__(self, memo):
        pytest.fail('a data set of COCO would be there twice')


def tell(worker_id):
    global told
    told = f'worker {worker_id}'


def make_runner(folder, num_workers, sampler, **options):
    runner = Runner(
        torch.nn.Linear(1, 1),
        str(folder),
        train_dataloader=dict(
            dataset=dict(type=Words),
            sampler=dict(type=sampler, shuffle=True),
            batch_size=2,
            num_workers=num_workers,
            **options,
        ),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=9),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1)),
        randomness=dict(seed=5),
        experiment_name=f'{sampler}_{num_workers}',
    )
    return runner, runner.train_loop  # which is built by that


# An epoch of DefaultSampler ends in between, and the next begins.
@pytest.mark.parametrize(
    ('sampler', 'persistent'),
    [('InfiniteSampler', False), ('DefaultSampler', True)],
)
def test_what_is_set_later_reaches_them(
    sampler, persistent, monkeypatch, tmp_path
):
    monkeypatch.setattr('mmengine.runner.loops.time.sleep', lambda _: None)
    plain, plain_loop = make_runner(tmp_path, 0, sampler)
    children = psutil.Process().children
    others = set(children())
    options = dict(persistent_workers=persistent)
    runner, loop = make_runner(tmp_path, 2, sampler, **options)
    workers = set(children()) - others
    assert len(workers) == 2

    hold_workers(runner)
    assert not workers & set(children())
    loader = loop.dataloader
    loader.worker_init_fn = tell
    hold_workers(runner)
    assert loop.dataloader is loader
    # Nothing is done without need.
    iterator = plain_loop.dataloader_iterator
    hold_workers(plain)
    assert plain_loop.dataloader_iterator is iterator
    hold_workers(SimpleNamespace(_train_loop=dict(by_epoch=True)))

    # The images are those of a loader without workers, from the first one.
    for _ in range(9):
        wanted, _ = next(iterator)
        got, words = next(loop.dataloader_iterator)
        assert got == wanted
        assert all(word.startswith('worker ') for word in words)


def test_what_a_batch_and_its_loader_tell():
    samples = [
        DetDataSample(metainfo=dict(img_id=3, img_path='a.jpg')),
        DetDataSample(metainfo=dict(img_id='x')),
        DetDataSample(),
    ]
    batch = dict(inputs=[torch.ones(2)], data_samples=samples)
    assert image_names(batch) == ['3 (a.jpg)', 'x']
    assert image_names((torch.ones(2), 'text')) == []
    by_sampler = DataLoader([1, 2], batch_sampler=[[0], [1]])
    with pytest.raises(ConfigError, match='list has no batch_size'):
        images_per_gpu(by_sampler)
    assert images_per_gpu(DataLoader([1, 2], 2)) == 2
