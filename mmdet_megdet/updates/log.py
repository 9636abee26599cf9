# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An update in the log: its place, its losses, its time for data."""

from __future__ import annotations

from typing import Any

from mmengine.runner import IterBasedTrainLoop, Runner


def place_of(runner: Runner, batch_idx: int, micro_step: int = 0) -> str:
    """Return, for instance, 'epoch 1, update 7 of 458, micro-step 2 of 8'.

    Args:
        runner (Runner): In training.
        batch_idx (int): As its hooks get it.
        micro_step (int): Of the update, where it has several. Defaults to 0.
    """
    loop: Any = runner.train_loop
    if isinstance(loop, IterBasedTrainLoop):
        return f'iteration {batch_idx + 1} of {loop.max_iters}'
    # Of an UpdateTrainLoop.
    plan = getattr(loop, 'plan', None)
    unit = 'iteration' if plan is None else 'update'
    place = f'epoch {loop.epoch + 1}, {unit} {batch_idx + 1} of '
    place += f'{len(loop.dataloader)}'
    if plan is not None and plan.accumulation > 1:
        place += f', micro-step {micro_step + 1} of {plan.accumulation}'
    return place


def mean_outputs(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each value's mean over the micro-steps that have it."""
    names = dict.fromkeys(name for found in outputs for name in found)
    means = {}
    for name in names:
        values = [found[name] for found in outputs if name in found]
        means[name] = sum(values) / len(values)
    return means


def add_data_time(runner: Runner, seconds: float) -> None:
    """Add the time for later micro-batches, which IterTimerHook leaves out."""
    times = runner.message_hub.log_scalars.get('train/data_time')
    if times is not None:
        history, _ = times.data
        history[-1] += seconds
