# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler
from torch.utils.data import DataLoader

from mmdet_megdet.recipe import (
    BatchPlan,
    aspect_ratio_note,
    images_by_machines,
    most_images,
    plan_with_fewer_images,
)
from tests.recipe.test_plan import divides

SMALL = st.integers(1, 16)


@given(SMALL, SMALL, st.integers(1, 200), st.none() | SMALL)
def test_most_images(world_size, at_most, total, bn_size):
    possible = [
        images
        for images in range(1, at_most + 1)
        if divides(world_size, images, total, bn_size)
    ]
    found = most_images(world_size, at_most, total, [bn_size])
    assert found == max(possible, default=None)


@pytest.mark.parametrize(
    ('plan', 'images', 'bn_size'),
    [
        (BatchPlan(8, 4, 256, 16), 2, 16),
        # 8 x 2 images do not hold 32.
        (BatchPlan(8, 4, 256, 32), 2, None),
        # Four divide the total batch, but not the BN size among the ranks.
        (BatchPlan(4, 6, 96, 6), 3, 6),
        # Local BN becomes that of two ranks.
        (BatchPlan(8, 2, 16, 2), 1, 2),
    ],
)
def test_a_plan_with_fewer_images(plan, images, bn_size):
    found = plan_with_fewer_images(plan)
    assert (found.images_per_gpu, found.bn_size) == (images, bn_size)
    assert found.world_size == plan.world_size
    assert found.total_batch_size == plan.total_batch_size
    assert plan_with_fewer_images(BatchPlan(8, 1, 256, 8)) is None


def test_images_by_machines():
    # 8 do not divide 32 images over 8 GPUs, 4 do.
    machines, options = range(1, 3), (4, 8, 32, [4], True)
    assert images_by_machines(machines, *options) == {1: 4, 2: 4}
    # One of the sizes asks for fewer than the other.
    options = (8, 16, 256, [16, 8], True)
    assert images_by_machines(range(1, 2), *options) == {1: 8}


class Images(list):
    def get_data_info(self, index):
        """Portraits and landscapes in turn."""
        return dict(width=2 + index % 2, height=3 - index % 2)


def batches_by_rank(monkeypatch, dataset_size, world_size, images):
    """Sizes of the batches that each rank's loader makes in an epoch."""
    dataset = Images(range(dataset_size))
    made = []
    for rank in range(world_size):
        monkeypatch.setattr(
            'mmengine.dataset.sampler.get_dist_info',
            lambda rank=rank: (rank, world_size),
        )
        sampler = AspectRatioBatchSampler(
            DefaultSampler(dataset, seed=0), images, drop_last=True
        )
        loader = DataLoader(dataset, batch_sampler=sampler)
        made.append([len(batch) for batch in loader])
    return made


def test_the_note_where_ranks_make_different_numbers_of_batches(monkeypatch):
    """48 images on 3 ranks: 16 each, four batches, or three."""
    made = batches_by_rank(monkeypatch, 48, 3, 4)
    assert {len(batches) for batches in made} == {3, 4}, (
        'mmdet keeps the full batch now: aspect_ratio_note is not needed'
    )
    assert 'each rank has 16 images an epoch' in aspect_ratio_note(16, 4)
    for each, images in ((17, 4), (25, 2), (2, 1)):
        assert aspect_ratio_note(each, images) is None
        made = batches_by_rank(monkeypatch, each * 3, 3, images)
        assert len({len(batches) for batches in made}) == 1
