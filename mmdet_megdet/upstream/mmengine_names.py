# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of MMEngine."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from mmengine.optim import BaseOptimWrapper, _ParamScheduler
from mmengine.runner.loops import _InfiniteDataloaderIterator
from torch.optim import Optimizer
from torch.utils.data import DataLoader


def endless_batches(loader: DataLoader) -> Iterator:
    """Iterate over a loader again and again, as IterBasedTrainLoop does."""
    return _InfiniteDataloaderIterator(loader)


def schedulers_of(
    optimizer: Optimizer | BaseOptimWrapper,
) -> list[_ParamScheduler]:
    """Find the schedulers that write into an optimizer's groups.

    MMEngine keeps no list of them: they meet in the groups alone. The
    garbage collector knows all objects, a million of them in 0.2 s.
    """
    return [
        thing
        for thing in gc.get_objects()
        # By its type: isinstance would wake up lazy proxies.
        if issubclass(type(thing), _ParamScheduler)
        and _bare(getattr(thing, 'optimizer', None)) is _bare(optimizer)
    ]


def _bare(
    optimizer: Optimizer | BaseOptimWrapper | None,
) -> Optimizer | None:
    return getattr(optimizer, 'optimizer', optimizer)
