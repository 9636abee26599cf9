# Copyright (c) mmdet_megdet contributors. All rights reserved.
import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset, DefaultSampler
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.updates import UpdateBatchSampler, epoch_layout
from mmdet_megdet.updates.batch_sampler import landscapes

# World size, images per GPU, of 8 images an update.
SPLITS = [(1, 4), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)]


class Sizes(BaseDataset):
    """Portraits where the index is a multiple of three."""

    def __init__(self, images=27):
        self.images = images
        super().__init__()

    def load_data_list(self):
        return [
            dict(width=3, height=4 if i % 3 == 0 else 2)
            for i in range(self.images)
        ]


# Each that is made collects garbage.
SIZES = Sizes()


def configured(rank=0, world_size=1, images_per_gpu=4, dataset=None, seed=5):
    found = UpdateBatchSampler(
        DefaultSampler(dataset or SIZES, seed=seed), images_per_gpu
    )
    found.configure(
        total_batch_size=8,
        unit_size=4,
        seed=seed,
        rank=rank,
        world_size=world_size,
    )
    return found


def test_a_rank_takes_its_slice_of_each_micro_step():
    batches = configured(rank=1, world_size=2, images_per_gpu=2)
    batches.start_at(epoch=3, update=2)
    layout = epoch_layout(landscapes(SIZES), 5, 3, 8, 4)
    assert layout.shape == (3, 8)
    found = list(batches)
    assert found == [layout[2][2:4].tolist(), layout[2][6:8].tolist()]
    assert [batch.epoch for batch in found] == [3, 3]
    assert [batches.first_position(step) for step in (0, 1)] == [2, 6]


@pytest.mark.parametrize('persistent_workers', [True, False])
def test_a_start_holds_for_one_iteration(persistent_workers):
    batches = configured()
    loader = DataLoader(
        SIZES,
        batch_sampler=batches,
        num_workers=1,
        persistent_workers=persistent_workers,
        collate_fn=lambda data: [part['sample_idx'] for part in data],
    )
    batches.start_at(0, 1)
    rest, whole = list(loader), list(loader)
    assert whole[2:] == rest
    assert len(whole) == len(loader) == 6


def test_the_seed_is_read_when_an_epoch_begins():
    """A resumed run has its checkpoint's, told after the loader is built."""
    batches = configured(seed=5)
    first = list(batches)
    batches.configure(
        total_batch_size=8, unit_size=4, seed=6, rank=0, world_size=1
    )
    assert list(batches) != first
    assert list(batches) == list(configured(seed=6))


def build_loader(dataset, **options):
    config = dict(
        batch_size=2,
        num_workers=0,
        dataset=dataset,
        sampler=dict(type='DefaultSampler', shuffle=True),
        batch_sampler=dict(type='UpdateBatchSampler'),
    )
    return Runner.build_dataloader(config | options, seed=0)


@pytest.mark.parametrize(
    'dataset',
    [
        SIZES,
        dict(type='RepeatDataset', dataset=SIZES, times=2),
        dict(type='ConcatDataset', datasets=[SIZES, SIZES]),
        dict(type='MultiImageMixDataset', dataset=SIZES, pipeline=[]),
    ],
)
def test_orientations_through_wrappers(dataset):
    init_default_scope('mmdet')
    loader = build_loader(dataset)
    assert type(loader.batch_sampler) is UpdateBatchSampler
    # The data sets' lengths are multiples of three.
    expected = np.arange(len(loader.dataset)) % 3 > 0
    assert np.array_equal(landscapes(loader.dataset), expected)


def test_sizes_that_nobody_knows():
    plain = torch.utils.data.TensorDataset(torch.zeros(5))
    assert landscapes(plain).tolist() == [True] * 5


class OwnOrder(DefaultSampler):
    """Might weight images in its own way."""


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            dict(sampler=dict(type=OwnOrder)),
            'without OwnOrder: set train_.*ClassBalancedDataset',
        ),
        (
            dict(sampler=dict(type='DefaultSampler', shuffle=False)),
            'shuffle=False: set train_dataloader.sampler=',
        ),
        (dict(num_batch_per_epoch=2), 'num_batch_per_epoch .*dataset.indices'),
    ],
)
def test_other_orders_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build_loader(dict(type=Sizes), **options)


def test_a_seed_of_the_samplers_own():
    batches = UpdateBatchSampler(DefaultSampler(SIZES, seed=1), 4)
    with pytest.raises(ConfigError, match=r'sampler.seed=1 .* randomness.see'):
        batches.configure(
            total_batch_size=8, unit_size=4, seed=0, rank=0, world_size=1
        )


def test_another_loop():
    batches = UpdateBatchSampler(DefaultSampler(SIZES, seed=1), 4)
    for use in (len, list):
        with pytest.raises(ConfigError, match='UpdateTrainLoop'):
            use(batches)
