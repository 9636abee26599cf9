# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Iterations and updates of an epoch, against real dataloaders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler
from torch.utils.data import DataLoader

from mmdet_megdet.recipe import (
    BatchPlan,
    aspect_ratio_note,
    epoch_note,
    images_per_rank,
    iterations_per_epoch,
)


@pytest.mark.parametrize(
    ('gpus', 'images'), [(8, 4), (4, 8), (8, 8), (16, 4), (128, 2), (8, 32)]
)
def test_coco_has_458_whole_updates_on_any_hardware(gpus, images):
    iterations = iterations_per_epoch(117266, gpus, images)
    accumulation = BatchPlan(gpus, images, 256, 32).accumulation
    assert divmod(iterations, accumulation) == (458, 0)
    assert epoch_note(iterations, accumulation) is None


class Pictures(list):
    def get_data_info(self, index):
        """Portraits and landscapes in turn."""
        return dict(width=2 + index % 2, height=3 - index % 2)


def batches_by_rank(monkeypatch, dataset_size, world_size, images):
    """Sizes of the batches that each rank's loader makes in an epoch."""
    dataset = Pictures(range(dataset_size))
    expected = iterations_per_epoch(dataset_size, world_size, images)
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
        assert len(loader) == expected
        made.append([len(batch) for batch in loader])
    return made


@pytest.mark.parametrize(
    ('dataset_size', 'world_size', 'images'),
    [(50, 3, 4), (49, 3, 4), (7, 3, 4), (97, 4, 2), (5, 1, 2), (6, 3, 1)],
)
def test_the_length_is_a_real_loaders(
    monkeypatch, dataset_size, world_size, images
):
    expected = iterations_per_epoch(dataset_size, world_size, images)
    on_rank = images_per_rank(dataset_size, world_size)
    assert aspect_ratio_note(on_rank, images) is None
    made = batches_by_rank(monkeypatch, dataset_size, world_size, images)
    assert made == [[images] * expected] * world_size


def test_the_note_where_ranks_make_different_numbers_of_batches(monkeypatch):
    """48 pictures on 3 ranks: 16 each, four batches, or three."""
    made = batches_by_rank(monkeypatch, 48, 3, 4)
    assert {len(batches) for batches in made} == {3, 4}, (
        'mmdet keeps the full batch now: aspect_ratio_note is not needed'
    )
    note = aspect_ratio_note(images_per_rank(48, 3), 4)
    assert 'each rank has 16 images an epoch' in note


@given(st.integers(1, 300), st.integers(1, 40))
def test_the_remedy_of_the_note_helps(iterations, accumulation):
    note = epoch_note(iterations, accumulation)
    if note is None:
        assert iterations % accumulation == 0
        return
    assert f'gradient of {iterations % accumulation} iteration(s)' in note
    interval = int(note.split('checkpoint.interval=')[1].split(')')[0])
    whole = [n for n in range(1, 41) if n * iterations % accumulation == 0]
    assert interval == whole[0]


def test_an_epoch_without_an_iteration():
    assert iterations_per_epoch(30, 8, 4) == 1
    assert iterations_per_epoch(24, 8, 4) == 0
    assert 'smaller than a batch' in epoch_note(0, 8)
