# Copyright (c) mmdet_megdet contributors. All rights reserved.
import numpy as np
import pytest
from mmengine.dataset import BaseDataset, DefaultSampler
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.recipe import BatchPlan
from mmdet_megdet.updates import UpdateBatchSampler, epoch_layout
from mmdet_megdet.updates.batch_sampler import landscapes


class Sizes(BaseDataset):
    """27 images, portraits where the index is a multiple of three."""

    def load_data_list(self):
        return [dict(width=3, height=2 + 2 * (i % 3 == 0)) for i in range(27)]


SIZES = Sizes()
OPTIONS = dict(plan=BatchPlan(1, 4, 8), unit_size=4, seed=5, rank=0)


def configured(dataset=SIZES, **options):
    options = OPTIONS | options
    sampler = DefaultSampler(dataset, seed=options['seed'])
    found = UpdateBatchSampler(sampler, options['plan'].images_per_gpu)
    found.configure(**options)
    return found


def test_a_rank_takes_its_slice_of_each_micro_step():
    batches = configured(rank=1, plan=BatchPlan(2, 2, 8))
    batches.start_at(epoch=3, update=2)
    _, _, update = epoch_layout(landscapes(SIZES), 5, 3, 8, 4).tolist()
    found = list(batches)
    assert found == [update[2:4], update[6:8]]
    assert [batch.epoch for batch in found] == [3, 3]
    assert [batches.first_position(step) for step in (0, 1)] == [2, 6]
    # A resumed run has its checkpoint's seed, told after the loader is built.
    batches = configured()
    first = list(batches)
    batches.configure(**OPTIONS | dict(seed=6))
    assert list(batches) != first
    assert list(batches) == list(configured(seed=6))


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


def build_loader(dataset=SIZES, kind=DefaultSampler, shuffle=True, **options):
    config = dict(
        batch_size=2,
        num_workers=0,
        dataset=dataset,
        sampler=dict(type=kind, shuffle=shuffle),
        batch_sampler=dict(type='UpdateBatchSampler'),
    )
    return Runner.build_dataloader(config | options, seed=0)


@pytest.mark.parametrize(
    'wrapper',
    [
        dict(type='RepeatDataset', dataset=SIZES, times=2),
        dict(type='ConcatDataset', datasets=[SIZES, SIZES]),
        dict(type='mmdet.MultiImageMixDataset', dataset=SIZES, pipeline=[]),
    ],
)
def test_orientations_through_wrappers(wrapper):
    loader = build_loader(wrapper)
    assert type(loader.batch_sampler) is UpdateBatchSampler
    # The data sets' lengths are multiples of three.
    expected = np.arange(len(loader.dataset)) % 3 > 0
    assert np.array_equal(landscapes(loader.dataset), expected)
    # Where nobody knows.
    assert landscapes(range(5)).tolist() == [True] * 5


def test_other_orders_are_refused():
    class OwnOrder(DefaultSampler):
        """Might weight images in its own way."""

    with pytest.raises(ConfigError, match=r'OwnOrder: .*ClassBalanced'):
        build_loader(kind=OwnOrder)
    with pytest.raises(ConfigError, match='shuffle=False: set train_data'):
        build_loader(shuffle=False)
    with pytest.raises(ConfigError, match=r'num_batch_per.*dataset.indices'):
        build_loader(dict(type=Sizes), num_batch_per_epoch=2)
    batches = UpdateBatchSampler(DefaultSampler(SIZES, seed=1), 4)
    for use in (len, list):
        with pytest.raises(ConfigError, match='UpdateTrainLoop'):
            use(batches)
    with pytest.raises(ConfigError, match=r'sampler.seed=1 .* randomness.see'):
        batches.configure(**OPTIONS)
