# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""mmdet's batches by orientation, of which ranks make different numbers."""

import pytest
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler
from torch.utils.data import DataLoader

from mmdet_megdet.recipe import aspect_ratio_note


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


@pytest.mark.parametrize(
    ('dataset_size', 'world_size', 'images'),
    [(50, 3, 4), (49, 3, 4), (7, 3, 4), (97, 4, 2), (5, 1, 2), (6, 3, 1)],
)
def test_no_note_where_ranks_make_the_same(
    monkeypatch, dataset_size, world_size, images
):
    each = -(-dataset_size // world_size)
    assert aspect_ratio_note(each, images) is None
    made = batches_by_rank(monkeypatch, dataset_size, world_size, images)
    assert made == [[images] * (each // images)] * world_size


def test_the_note_where_ranks_make_different_numbers_of_batches(monkeypatch):
    """48 images on 3 ranks: 16 each, four batches, or three."""
    made = batches_by_rank(monkeypatch, 48, 3, 4)
    assert {len(batches) for batches in made} == {3, 4}, (
        'mmdet keeps the full batch now: aspect_ratio_note is not needed'
    )
    note = aspect_ratio_note(16, 4)
    assert 'each rank has 16 images an epoch' in note
