# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The arithmetic of a batch on given hardware; standard library alone."""

from .images_per_gpu import (
    MachinesError,
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
    nearest_bn_sizes,
    ranks_per_group,
)
from .table import format_table, plan_rows

__all__ = [
    'BatchPlan',
    'MachinesError',
    'PlanError',
    'aspect_ratio_note',
    'check_bn_size',
    'format_table',
    'group_ranks',
    'images_by_machines',
    'most_images',
    'nearest_bn_sizes',
    'plan_rows',
    'plan_with_fewer_images',
    'ranks_per_group',
]
