# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Streams of random numbers; the same pixels on any hardware.

Ranks are one after the other in one process.
"""

import itertools
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset, MultiImageMixDataset
from mmdet.utils import register_all_modules
from mmengine.dataset import pseudo_collate
from torch.utils.data import DataLoader

from mmdet_megdet.demo_data import generate_shapes
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.updates import (
    EpochBatch,
    seed_by_image,
    seed_generators,
)
from tests.updates.test_batch_sampler import SPLITS, configured


def draw():
    """Draw one number of each global generator."""
    return (
        random.random(),
        float(np.random.rand()),
        int(torch.randint(2**62, ())),
    )


def test_streams_repeat_and_never_coincide():
    words = [
        words
        for length in (1, 2, 3, 4)
        for words in itertools.product(range(3), repeat=length)
    ]
    seen = []
    for where in words:
        seed_generators(*where)
        numbers = draw()
        seed_generators(*where, devices=False)
        assert draw() == numbers
        seen.append(numbers)
    for stream in zip(*seen, strict=True):
        assert len(set(stream)) == len(words) == 3 + 9 + 27 + 81


LOAD = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
]
AUGMENT = [
    dict(type='PhotoMetricDistortion'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomCrop', crop_size=(0.5, 0.5), crop_type='relative_range'),
]
PACK = [dict(type='PackDetInputs', meta_keys=('img_id',))]


def reject_some(results):
    """Without a result, another image is tried in its place."""
    return results if np.random.rand() < 0.7 else None


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    register_all_modules()
    folder = tmp_path_factory.mktemp('shapes')
    generate_shapes(folder, train=20, val=1, size=(40, 32))
    return f'{folder}/'


def coco(folder, pipeline):
    return CocoDataset(
        data_root=folder,
        metainfo=dict(
            classes=('circle', 'square', 'triangle', 'star', 'ring')
        ),
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/train/'),
        pipeline=pipeline,
    )


def plain(folder):
    return coco(folder, [*LOAD, *AUGMENT, reject_some, *PACK])


def mixed(folder):
    return MultiImageMixDataset(
        coco(folder, LOAD),
        [
            dict(type='Mosaic', img_scale=(24, 24)),
            dict(type='MixUp', img_scale=(24, 24)),
            *AUGMENT,
            *PACK,
        ],
    )


@pytest.fixture(scope='module', params=[plain, mixed])
def dataset(request, folder):
    found = request.param(folder)
    seed_by_image(found, seed=3)
    return found


def updates_of(dataset, split=(1, 4), **options):
    """Images, as loaded, of each update, in the order of the layout."""
    world_size, images_per_gpu = split
    ranks = []
    for rank in range(world_size):
        batches = configured(rank, world_size, images_per_gpu, dataset, 3)
        loader = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=pseudo_collate,
            **options,
        )
        steps = []
        for epoch in range(2):
            batches.start_at(epoch, 0)
            steps += [pixels(batch) for batch in loader]
        ranks.append(steps)
    at_once = zip(*ranks, strict=True)
    images = [image for step in at_once for part in step for image in part]
    return [images[i : i + 8] for i in range(0, len(images), 8)]


def pixels(batch):
    return [
        (
            sample.img_id,
            image.numpy().tobytes(),
            sample.gt_instances.bboxes.tensor.numpy().tobytes(),
        )
        for image, sample in zip(
            batch['inputs'], batch['data_samples'], strict=True
        )
    ]


@pytest.fixture(scope='module')
def expected(dataset):
    updates = updates_of(dataset)
    assert [len(update) for update in updates] == [8] * 4
    return updates


@pytest.mark.parametrize('workers', [0, 1, 3])
@pytest.mark.parametrize('split', SPLITS)
def test_same_pixels(dataset, expected, split, workers):
    options = dict(num_workers=workers, persistent_workers=workers == 3)
    assert updates_of(dataset, split, **options) == expected


def test_spawned_workers_get_the_streams_too(dataset, expected):
    assert updates_of(pickle.loads(pickle.dumps(dataset))) == expected


def test_epochs_and_seeds_draw_anew(folder):
    images = coco(folder, [*LOAD, *AUGMENT, *PACK])
    seen = set()
    for seed in (3, 4):
        seed_by_image(images, seed)
        updates = updates_of(images)
        seen |= {image for update in updates for image in update}
    assert len(seen) == 2 * 2 * 16


class Fails:
    def __getitem__(self, index):
        draw()
        if index:
            raise KeyError(index)


def test_the_process_keeps_its_own_generators():
    """Also where an image cannot be loaded."""
    dataset = Fails()
    seed_by_image(dataset, seed=3)
    seed_generators(1)
    expected = draw()
    seed_generators(1)
    with pytest.raises(KeyError):
        dataset.__getitems__(EpochBatch([0, 1], epoch=0))
    assert draw() == expected


def test_transforms_that_keep_images_are_refused(folder):
    cached = dict(type='CachedMosaic', img_scale=(24, 24))
    branch = dict(type='RandomApply', transforms=cached)
    for dataset in (
        MultiImageMixDataset(coco(folder, LOAD), [cached]),
        coco(folder, [*LOAD, branch]),
    ):
        with pytest.raises(ConfigError, match=r'CachedMosaic .* Use Mosaic'):
            seed_by_image(dataset, 0)


class Own:
    """A transform with a generator of its own, deep inside."""

    def __init__(self, generator):
        self.tools = dict(draw=[SimpleNamespace(rng=generator)])

    def __call__(self, results):
        return results


@pytest.mark.parametrize(
    'generator',
    [
        np.random.default_rng(0),
        np.random.RandomState(0),
        random.Random(0),
        torch.Generator(),
    ],
)
def test_generators_of_ones_own_are_refused(folder, generator):
    with pytest.raises(ConfigError, match=r'SimpleNamespace .* own \(rng\)'):
        seed_by_image(coco(folder, [*LOAD, Own(generator)]), 0)
