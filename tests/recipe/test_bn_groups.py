# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Sizes and divisors; ``ranks_per_group`` is tested beside its user."""

from hypothesis import given
from hypothesis import strategies as st

from mmdet_megdet.recipe.plan import divisors, group_ranks, nearest_bn_sizes


@given(st.integers(1, 5000))
def test_divisors(number):
    expected = [n for n in range(1, number + 1) if number % n == 0]
    assert divisors(number) == expected


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 64))
def test_nearest_sizes_are_possible_and_nothing_lies_between(
    bn_size, images, world_size
):
    possible = [
        size
        for size in range(1, images * world_size + 1)
        if group_ranks(size, images, world_size) is not None
    ]
    below = [size for size in possible if size < bn_size]
    above = [size for size in possible if size > bn_size]
    assert nearest_bn_sizes(bn_size, images, world_size) == (
        below[-1:] + above[:1]
    )
