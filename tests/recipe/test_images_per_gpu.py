# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler

from mmdet_megdet.recipe import (
    BatchPlan,
    aspect_ratio_note,
    images_by_machines,
    plan_with_fewer_images,
)


@pytest.mark.parametrize(
    ('plan', 'expected'),
    [
        (BatchPlan(8, 4, 256, 16), BatchPlan(8, 2, 256, 16)),
        # 8 x 2 images do not hold 32.
        (BatchPlan(8, 4, 256, 32), BatchPlan(8, 2, 256, None)),
        # Four divide the total batch, but not the BN size among the ranks.
        (BatchPlan(4, 6, 96, 6), BatchPlan(4, 3, 96, 6)),
        # Local BN becomes that of two ranks.
        (BatchPlan(8, 2, 16, 2), BatchPlan(8, 1, 16, 2)),
        (BatchPlan(8, 1, 256, 8), None),
    ],
)
def test_a_plan_with_fewer_images(plan, expected):
    assert plan_with_fewer_images(plan) == expected


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


@pytest.mark.parametrize(('each', 'differ'), [(16, True), (17, False)])
def test_the_note_where_ranks_make_different_numbers_of_batches(
    each, differ, monkeypatch
):
    """If mmdet makes as many on all, the note is not needed."""
    made = set()
    for rank in range(3):
        monkeypatch.setattr(
            'mmengine.dataset.sampler.get_dist_info', lambda r=rank: (r, 3)
        )
        sampler = DefaultSampler(Images(range(each * 3)), seed=0)
        made.add(len(list(AspectRatioBatchSampler(sampler, 4, True))))
    assert (len(made) > 1) is differ
    assert (aspect_ratio_note(each, 4) is not None) is differ
