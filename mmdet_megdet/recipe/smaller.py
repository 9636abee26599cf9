# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The same total batch with other numbers of images on each GPU at once."""

from __future__ import annotations

from collections.abc import Sequence

from .bn_groups import divisors, group_ranks
from .plan import BatchPlan


def most_images(
    world_size: int,
    at_most: int,
    total_batch_size: int,
    bn_sizes: Sequence[int | None] = (None,),
) -> int | None:
    """Find the most images per GPU that divide.

    Args:
        world_size (int): Number of GPUs, one rank each.
        at_most (int): Images that fit a GPU.
        total_batch_size (int): Images of an optimizer update.
        bn_sizes (Sequence): Images over which BatchNorm takes its
            statistics, where layers differ several; None stands for those of
            all ranks. Defaults to that alone.

    Returns:
        int, optional: A number with which a :class:`BatchPlan` can be made
        for each BN size; None where there is none.

    Examples:
        >>> most_images(8, 12, 256, [32])
        8
        >>> most_images(6, 12, 256, [32]) is None
        True
    """
    each, rest = divmod(total_batch_size, world_size)
    if rest:
        return None
    return max(
        (
            images
            for images in divisors(each)
            if images <= at_most
            and None
            not in [group_ranks(s, images, world_size) for s in bn_sizes]
        ),
        default=None,
    )


def plan_with_fewer_images(plan: BatchPlan) -> BatchPlan | None:
    """The plan that needs less memory and changes the training least.

    The total batch stays. So does the BN size where that can be; where it
    cannot, because fewer images at once do not hold it, it is the largest
    that is left.

    Args:
        plan (BatchPlan): The plan that does not fit.

    Returns:
        BatchPlan, optional: With the most images per GPU below the plan's
        that divide, those which keep the BN size first; None where it is one
        image already.

    Examples:
        >>> plan_with_fewer_images(BatchPlan(8, 4, 256, bn_size=16))
        BatchPlan(world_size=8, images_per_gpu=2, total_batch_size=256, \
bn_size=16)
    """
    world_size, total = plan.world_size, plan.total_batch_size
    for bn_size in (plan.bn_size, None):
        images = most_images(
            world_size, plan.images_per_gpu - 1, total, [bn_size]
        )
        if images is not None:
            return BatchPlan(world_size, images, total, bn_size)
    return None
