# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Streams of random numbers; the same pixels on any hardware.

Ranks are one after the other in one process.
"""

import pickle
import random
from functools import partial
from itertools import chain, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset, MultiImageMixDataset
from mmdet.utils import register_all_modules
from torch.utils.data import DataLoader

from mmdet_megdet.demo_data import METAINFO, generate_shapes
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.recipe import BatchPlan
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
    seen = []
    for length in (1, 2, 3, 4):
        for words in product(range(3), repeat=length):
            seed_generators(*words)
            numbers = draw()
            seed_generators(*words, devices=False)
            assert draw() == numbers
            seen.append(numbers)
    for stream in zip(*seen, strict=True):
        assert len(set(stream)) == 3 + 9 + 27 + 81


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
        metainfo=METAINFO,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/train/'),
        pipeline=[*LOAD, *pipeline],
    )


def two_epochs(dataset, world_size=1, images_per_gpu=4, workers=0):
    """Images and boxes as loaded, each image as what it is, in order."""
    ranks = []
    for rank in range(world_size):
        plan = BatchPlan(world_size, images_per_gpu, 8)
        batches = configured(dataset, plan=plan, rank=rank, seed=3)
        loader = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=list,
            num_workers=workers,
            persistent_workers=workers == 3,
        )
        ranks.append([])
        for epoch in range(2):
            batches.start_at(epoch, 0)
            ranks[-1] += loader
    return [
        (
            image['data_samples'].img_id,
            image['inputs'].numpy().tobytes(),
            image['data_samples'].gt_instances.bboxes.numpy().tobytes(),
        )
        for micro_step in zip(*ranks, strict=True)
        for image in chain(*micro_step)
    ]


@pytest.mark.parametrize('mix', [(), ('Mosaic', 'MixUp')])
def test_same_pixels(coco, mix):
    dataset = coco(reject_some, *AUGMENT)
    if mix:
        steps = [dict(type=name, img_scale=(24, 24)) for name in mix]
        dataset = MultiImageMixDataset(coco(), [*steps, *AUGMENT])
    seed_by_image(dataset, seed=3)
    expected = two_epochs(dataset)
    for split in ((1, 4, 3), (2, 2, 1), (4, 1, 3), (4, 2, 0), (8, 1, 1)):
        assert two_epochs(dataset, *split) == expected
    # Spawned workers get the streams too.
    assert two_epochs(pickle.loads(pickle.dumps(dataset))) == expected
    # Epochs and seeds draw anew.
    seed_by_image(dataset, seed=4)
    assert len({*expected, *two_epochs(dataset)}) == 2 * 2 * 16


def test_the_process_keeps_its_own_generators():
    """Also where an image cannot be loaded."""

    class Fails:
        def __getitem__(self, index):
            draw()
            raise KeyError(index)

    dataset = Fails()
    seed_by_image(dataset, seed=3)
    seed_generators(1)
    expected = draw()
    seed_generators(1)
    with pytest.raises(KeyError):
        dataset.__getitems__(EpochBatch([0], epoch=0))
    assert draw() == expected


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
        # Deep inside a transform.
        own = partial(reject_some)
        own.tools = dict(draw=[SimpleNamespace(rng=generator)])
        with pytest.raises(ConfigError, match=r'SimpleNamespace .* \(rng\)'):
            seed_by_image(coco(own), 0)
