# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdet_megdet.recipe import BatchPlan, plan_with_fewer_images


@pytest.mark.parametrize(
    ('plan', 'images', 'bn_size'),
    [
        (BatchPlan(8, 4, 256, 16), 2, 16),
        # 8 x 2 images do not hold 32.
        (BatchPlan(8, 4, 256, 32), 2, None),
        (BatchPlan(4, 8, 128, 8), 4, 8),
        # Four divide the total batch, but not the BN size among the ranks.
        (BatchPlan(4, 6, 96, 6), 3, 6),
        (BatchPlan(1, 5, 20, None), 4, None),
        # Local BN becomes that of two ranks.
        (BatchPlan(8, 2, 16, 2), 1, 2),
    ],
)
def test_examples(plan, images, bn_size):
    found = plan_with_fewer_images(plan)
    assert (found.images_per_gpu, found.bn_size) == (images, bn_size)


def test_one_image_is_the_least():
    assert plan_with_fewer_images(BatchPlan(8, 1, 256, 8)) is None


@given(
    world=st.integers(1, 16),
    images=st.integers(1, 16),
    counts=st.integers(1, 16),
    data=st.data(),
)
def test_total_stays_and_bn_size_where_it_can(world, images, counts, data):
    total = world * images * counts
    ranks = data.draw(
        st.sampled_from([r for r in range(1, world + 1) if world % r == 0])
    )
    plan = BatchPlan(world, images, total, ranks * images)
    found = plan_with_fewer_images(plan)
    if images == 1:
        assert found is None
        return
    assert found.images_per_gpu < images
    assert (found.world_size, found.total_batch_size) == (world, total)
    between = range(found.images_per_gpu + 1, images)
    if found.bn_size == plan.bn_size:
        fits = [n for n in between if _fits(world, n, total, plan.bn_size)]
    else:
        assert found.bn_size is None
        below = range(1, images)
        assert not any(_fits(world, n, total, plan.bn_size) for n in below)
        fits = [n for n in between if _fits(world, n, total, None)]
    assert fits == []


def _fits(world: int, images: int, total: int, bn_size: int | None) -> bool:
    """By the arithmetic itself."""
    if total % (world * images):
        return False
    if bn_size is None:
        return True
    return bn_size % images == 0 and world % (bn_size // images) == 0
