# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the log shows of an update, which has several micro-steps."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.runner import Runner
from torch import Tensor


def mean_outputs(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each value's mean over the micro-steps that have it.

    Args:
        outputs (list[dict[str, Any]]): What ``train_step`` returned.
    """
    names = dict.fromkeys(name for found in outputs for name in found)
    means = {}
    for name in names:
        values = [found[name] for found in outputs if name in found]
        if isinstance(values[0], Tensor):
            means[name] = torch.stack(values).mean(0)
        else:
            means[name] = sum(values) / len(values)
    return means


def add_data_time(runner: Runner, seconds: float) -> None:
    """Add what IterTimerHook has not seen, which looks at the first batch.

    Args:
        runner (Runner): Whose message hub has it, if the hook is there.
        seconds (float): That the other micro-batches were waited for.
    """
    times = runner.message_hub.log_scalars.get('train/data_time')
    if times is not None:
        history, _ = times.data
        history[-1] += seconds
