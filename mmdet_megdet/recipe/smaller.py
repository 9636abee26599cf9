# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The same total batch with fewer images on each GPU at once."""

from __future__ import annotations

from .bn_groups import divisors
from .plan import BatchPlan, PlanError


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
    smaller = [
        images
        for images in divisors(plan.total_batch_size // plan.world_size)
        if images < plan.images_per_gpu
    ]
    for bn_size in (plan.bn_size, None):
        for images in reversed(smaller):
            try:
                return BatchPlan(
                    plan.world_size, images, plan.total_batch_size, bn_size
                )
            except PlanError:
                continue
    return None
