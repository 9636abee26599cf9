# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The arithmetic of a batch on given hardware; standard library alone."""

from .epoch import aspect_ratio_note
from .machines import MachinesError, images_by_machines
from .plan import (
    LINEAR_RULE,
    BatchPlan,
    PlanError,
    check_bn_size,
    most_images,
    plan_with_fewer_images,
    ranks_per_group,
)
from .table import format_table, plan_rows

__all__ = [
    'LINEAR_RULE',
    'BatchPlan',
    'MachinesError',
    'PlanError',
    'aspect_ratio_note',
    'check_bn_size',
    'format_table',
    'images_by_machines',
    'most_images',
    'plan_rows',
    'plan_with_fewer_images',
    'ranks_per_group',
]
