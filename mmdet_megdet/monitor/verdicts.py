# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From an iteration's numbers to findings."""

from __future__ import annotations

from . import advice, faults, inputs
from .finding import Finding
from .numbers import Numbers
from .table import forward_order


def judge(
    numbers: Numbers, max_collective_share: float, max_running_var: float
) -> list[Finding]:
    """All that is to be said of an iteration, errors first.

    A pure function: ranks that have the same numbers come to the same
    findings.

    Args:
        numbers (Numbers): What was gathered.
        max_collective_share (float): Share of an iteration that BatchNorm's
            collectives may take.
        max_running_var (float): What a running variance may grow to.
    """
    order = forward_order(numbers)
    if numbers.world_size == 1:
        between = []
    else:
        between = [
            *faults.call_order(numbers, order),
            *faults.not_synchronised(numbers, order),
            *faults.buffers_disagree(numbers, order),
            *inputs.same_data(numbers, order),
            *advice.bn_size(numbers, order),
            *advice.collective_time(numbers, order, max_collective_share),
        ]
    found = [
        *inputs.non_finite(numbers, order),
        *between,
        *advice.eval_mode(numbers, order),
        *advice.frozen_affine(numbers, order),
        *advice.plain_batch_norm(numbers, order),
        *advice.dead_channels(numbers, order),
        *advice.running_variance(numbers, order, max_running_var),
        *advice.not_called(numbers, order),
    ]
    levels = ('error', 'warning', 'info')
    return sorted(found, key=lambda finding: levels.index(finding.level))
