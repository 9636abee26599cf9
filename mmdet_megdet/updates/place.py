# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Where in training a rank is, in words."""

from __future__ import annotations

from mmengine.runner import IterBasedTrainLoop, Runner

from .loop import UpdateTrainLoop


def place_of(runner: Runner, batch_idx: int, micro_step: int = 0) -> str:
    """Return, for instance, 'epoch 1, update 7 of 458, micro-step 2 of 8'.

    Args:
        runner (Runner): In training.
        batch_idx (int): As its hooks get it.
        micro_step (int): Of the update, where it has several. Defaults to 0.
    """
    loop = runner.train_loop
    if isinstance(loop, IterBasedTrainLoop):
        return f'iteration {batch_idx + 1} of {loop.max_iters}'
    unit, steps = 'iteration', 1
    if isinstance(loop, UpdateTrainLoop):
        unit, steps = 'update', loop.plan.accumulation
    place = f'epoch {loop.epoch + 1}, {unit} {batch_idx + 1} of '
    place += f'{len(loop.dataloader)}'
    if steps > 1:
        place += f', micro-step {micro_step + 1} of {steps}'
    return place
