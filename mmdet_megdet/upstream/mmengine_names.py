# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of MMEngine."""

from __future__ import annotations

from typing import Any

from mmengine.optim import OptimWrapper
from mmengine.runner.runner import _SlicedDataset


def is_cut_to_batches(dataset: Any) -> bool:
    """Whether ``num_batch_per_epoch`` of a dataloader cut the data set."""
    return isinstance(dataset, _SlicedDataset)


def count_skipped_update(wrapper: OptimWrapper, micro_steps: int) -> None:
    """Count an update that was not made as one that was.

    Args:
        wrapper (OptimWrapper): Whose schedulers and accumulation count.
        micro_steps (int): Micro-steps of the training so far.
    """
    wrapper._inner_count = micro_steps
    # By which schedulers tell whether the optimizer has stepped; there is
    # none before a scheduler is built.
    wrapper._global_step = getattr(wrapper, '_global_step', 0) + 1
