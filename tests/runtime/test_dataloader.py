# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a loader tells of its batch, and workers that start too early."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.runner import IterBasedTrainLoop, Runner

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


def make_runner(num_workers, sampler, **loader):
    config = dict(
        dataset=Words(),
        sampler=sampler,
        batch_size=2,
        num_workers=num_workers,
        **loader,
    )
    runner = SimpleNamespace(
        build_dataloader=Runner.build_dataloader,
        seed=5,
        _randomness_cfg={},
        visualizer=SimpleNamespace(),
        _train_dataloader=config,
    )
    # The Runner itself would copy the data set if it is no config.
    loader = Runner.build_dataloader(
        dict(config, dataset=dict(type='Words')), seed=5
    )
    runner._train_loop = IterBasedTrainLoop(runner, loader, max_iters=9)
    return runner


def children():
    return set(psutil.Process().children())


def batches(loop, number=9):
    return [next(loop.dataloader_iterator) for _ in range(number)]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(
        'mmengine.runner.runner.DATASETS.build', lambda config: Words()
    )


@pytest.mark.parametrize('persistent', [False, True])
@pytest.mark.parametrize(
    'sampler',
    [
        dict(type='InfiniteSampler', shuffle=True),
        # Ends in between, and begins again.
        dict(type='DefaultSampler', shuffle=True),
    ],
    ids=lambda sampler: sampler['type'],
)
def test_what_is_set_later_reaches_them(sampler, persistent, monkeypatch):
    monkeypatch.setattr('mmengine.runner.loops.time.sleep', lambda _: None)
    plain = make_runner(0, sampler)._train_loop
    others = children()
    runner = make_runner(2, sampler, persistent_workers=persistent)
    loop, workers = runner._train_loop, children() - others
    assert len(workers) == 2

    hold_workers(runner)
    assert not workers & children()
    loader = loop.dataloader
    loader.worker_init_fn = tell
    hold_workers(runner)
    assert loop.dataloader is loader

    # The images are those of a loader without workers, from the first one.
    for got, wanted in zip(batches(loop), batches(plain), strict=True):
        assert [int(i) for i in got[0]] == [int(i) for i in wanted[0]]
        assert all(word.startswith('worker ') for word in got[1])


def test_nothing_is_done_without_need():
    hold_workers(SimpleNamespace(_train_loop=dict(by_epoch=True)))
    runner = make_runner(0, dict(type='InfiniteSampler'))
    iterator = runner._train_loop.dataloader_iterator
    hold_workers(runner)
    assert runner._train_loop.dataloader_iterator is iterator


def test_image_names():
    samples = [
        DetDataSample(metainfo=dict(img_id=3, img_path='a.jpg')),
        DetDataSample(metainfo=dict(img_id='x')),
        DetDataSample(),
    ]
    batch = dict(inputs=[torch.ones(2)], data_samples=samples)
    assert image_names(batch) == ['3 (a.jpg)', 'x']
    assert image_names((torch.ones(2), 'text')) == []


def test_images_per_gpu():
    by_sampler = torch.utils.data.DataLoader([1, 2], batch_sampler=[[0], [1]])
    with pytest.raises(ConfigError, match='list has no batch_size'):
        images_per_gpu(by_sampler)
    assert images_per_gpu(torch.utils.data.DataLoader([1, 2], 2)) == 2
