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
from mmdet_megdet.updates import EpochBatch, seed_by_image, seed_generators
from tests.updates.test_batch_sampler import configured


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
    dict(type='PackDetInputs', meta_keys=('img_id',)),
]


def reject_some(results):
    """Without a result, another image is tried in its place."""
    return results if np.random.rand() < 0.7 else None


@pytest.fixture(scope='module')
def coco(tmp_path_factory):
    """Makes a data set of 20 images with a pipeline."""
    register_all_modules()
    folder = tmp_path_factory.mktemp('shapes')
    generate_shapes(folder, train=20, val=1, size=(40, 32))
    return lambda *pipeline: CocoDataset(
        data_root=f'{folder}/',
        metainfo=dict(
            classes=('circle', 'square', 'triangle', 'star', 'ring')
        ),
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/train/'),
        pipeline=[*LOAD, *pipeline],
    )


def updates_of(dataset, world_size=1, images_per_gpu=4, **options):
    """Images, as loaded, of each update, in the order of the layout."""
    ranks = []
    for rank in range(world_size):
        batches = configured(
            images_per_gpu, dataset, rank=rank, world_size=world_size, seed=3
        )
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


@pytest.mark.parametrize('mosaics', [False, True])
def test_same_pixels(coco, mosaics):
    dataset = coco(*AUGMENT[:-1], reject_some, AUGMENT[-1])
    if mosaics:
        mix = [
            dict(type=name, img_scale=(24, 24)) for name in ('Mosaic', 'MixUp')
        ]
        dataset = MultiImageMixDataset(coco(), [*mix, *AUGMENT])
    seed_by_image(dataset, seed=3)
    expected = updates_of(dataset)
    assert [len(update) for update in expected] == [8] * 4
    for world_size, images_per_gpu, workers in (
        (1, 4, 3),
        (2, 2, 1),
        (2, 4, 0),
        (4, 1, 3),
        (4, 2, 0),
        (8, 1, 1),
    ):
        found = updates_of(
            dataset,
            world_size,
            images_per_gpu,
            num_workers=workers,
            persistent_workers=workers == 3,
        )
        assert found == expected
    # Spawned workers get the streams too.
    assert updates_of(pickle.loads(pickle.dumps(dataset))) == expected


def test_epochs_and_seeds_draw_anew(coco):
    images = coco(*AUGMENT)
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


class Own:
    """A transform with a generator of its own, deep inside."""

    def __init__(self, generator):
        self.tools = dict(draw=[SimpleNamespace(rng=generator)])

    def __call__(self, results):
        return results


def test_transforms_that_keep_images_or_generators_are_refused(coco):
    cached = dict(type='CachedMosaic', img_scale=(24, 24))
    branch = dict(type='RandomApply', transforms=cached)
    for dataset in (MultiImageMixDataset(coco(), [cached]), coco(branch)):
        with pytest.raises(ConfigError, match=r'CachedMosaic .* Use Mosaic'):
            seed_by_image(dataset, 0)
    for generator in (
        np.random.default_rng(0),
        np.random.RandomState(0),
        random.Random(0),
        torch.Generator(),
    ):
        with pytest.raises(
            ConfigError, match=r'SimpleNamespace .* own \(rng\)'
        ):
            seed_by_image(coco(Own(generator)), 0)
