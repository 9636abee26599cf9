# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The arithmetic of a batch on given hardware; standard library alone."""

from .images_per_gpu import (
    aspect_ratio_note,
    images_by_machines,
    most_images,
    plan_with_fewer_images,
)
from .plan import (
    BatchPlan,
    PlanError,
    check_bn_size,
    group_ranks,
    ranks_per_group,
)
from .table import format_table, plan_rows

__all__ = [
    'BatchPlan',
    'PlanError',
    'aspect_ratio_note',
    'check_bn_size',
    'format_table',
    'group_ranks',
    'images_by_machines',
    'most_images',
    'plan_rows',
    'plan_with_fewer_images',
    'ranks_per_group',
]
