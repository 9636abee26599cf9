# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of MMEngine."""

from __future__ import annotations

from typing import Any

from mmengine.runner.runner import _SlicedDataset


def is_cut_to_batches(dataset: Any) -> bool:
    """Whether ``num_batch_per_epoch`` of a dataloader cut the data set."""
    return isinstance(dataset, _SlicedDataset)
