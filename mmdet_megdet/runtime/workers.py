# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Data workers that start late enough for what hooks set on their loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..upstream.mmengine_names import endless_batches


def hold_workers(runner: Runner) -> None:
    """Let the workers of training start with its first batch, not earlier.

    What a worker is to know must be on its loader when it starts. Loops start
    theirs when they begin to iterate, ``before_train`` and all else behind
    them, except MMEngine's IterBasedTrainLoop: when it is built, ahead of all
    hooks. Those workers are ended here, and the sampler begins again. (One
    that is no config, but an object, goes on behind what they have asked for.)

    A hook that sets something on a loader calls this in ``before_run``; any
    number of them may.

    Args:
        runner (Runner): With its train loop built, or a run without one.
    """
    loop = runner._train_loop
    if (
        not isinstance(loop, IterBasedTrainLoop)
        or isinstance(loop.dataloader_iterator, _LateIterator)
        or loop.dataloader.num_workers == 0
    ):
        return
    loader, config = loop.dataloader, runner._train_dataloader
    # Workers end with the iterators that hold them.
    loop.dataloader_iterator = loader._iterator = None
    if isinstance(config, dict):
        anew = runner.build_dataloader(
            _AroundDataset(config, dataset=loader.dataset),
            seed=runner.seed,
            diff_rank_seed=runner._randomness_cfg.get('diff_rank_seed', False),
        )
        # In the same loader, which hooks may know already.
        vars(loader).update(
            sampler=anew.sampler, batch_sampler=anew.batch_sampler
        )
    loop.dataloader_iterator = _LateIterator(loader)


class _LateIterator:
    """In the place of the loop's iterator, which starts workers at once."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Sequence] | None = None

    def __iter__(self) -> Iterator[Sequence]:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = endless_batches(self._loader)
        return next(self._batches)


class _AroundDataset(dict):
    """A dataloader's config whose data set the Runner does not copy."""

    def __init__(self, config: dict, dataset: Any) -> None:
        super().__init__(config, dataset=dataset)
        # The data set is cut by it already.
        self.pop('num_batch_per_epoch', None)

    def __deepcopy__(self, memo: dict) -> dict:
        dataset = self['dataset']
        return deepcopy(dict(self), memo | {id(dataset): dataset})
