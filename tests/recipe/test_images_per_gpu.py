# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest

from mmdet_megdet.recipe import (
    BatchPlan,
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
