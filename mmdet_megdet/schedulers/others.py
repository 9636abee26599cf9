# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What other schedulers did to the values that a warm-up writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .warmup_base import WarmupParamScheduler


def factors_of_others(warmup: WarmupParamScheduler) -> list[float]:
    """Take in what others did to the values since the warm-up's last writing.

    MMEngine's schedulers multiply the value that they find in the group. The
    ratio of what is there now to what the warm-up wrote is therefore theirs.

    Returns:
        list[float]: Per group, what others have multiplied the value by
        until now.

    Raises:
        ValueError: If that cannot be told, at the value 0.
    """
    bases = warmup.base_values
    if warmup._others_factor is None:
        before, written = [1.0] * len(bases), bases
    else:
        before, written = warmup._others_factor, warmup._last_value
    found = [g[warmup.param_name] for g in warmup.optimizer.param_groups]
    # A group with base 0 stays at 0: no factor to keep.
    return [
        factor * _ratio(warmup, i, now, then) if bases[i] else 1.0
        for i, (factor, now, then) in enumerate(
            zip(before, found, written, strict=True)
        )
    ]


def _ratio(
    warmup: WarmupParamScheduler, group: int, found: float, written: float
) -> float:
    # 0 times gamma is 0, so the number does not tell whether somebody
    # multiplied it. The object does: a scheduler with nothing to do puts
    # back the very float that it took.
    if found is written:
        return 1.0
    if found == 0 or written == 0:
        raise ValueError(
            f'{type(warmup).__name__}: another scheduler or hook set '
            f'{warmup.param_name} of parameter group {group} from '
            f'{written} to {found} by step {warmup._global_step}, inside '
            f'the warm-up from {warmup.begin} to {warmup.end}. At the value '
            '0 its factor is lost. Move that milestone, put the warm-up '
            'first in param_scheduler, or use start_factor > 0.'
        )
    return found / written
