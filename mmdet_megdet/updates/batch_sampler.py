# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Micro-batches of an epoch: slices of a layout that no hardware changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
from mmengine.dataset import DefaultSampler
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import DataLoader, Sampler

from ..errors import ConfigError
from ..recipe import BatchPlan
from ..upstream.mmengine_names import is_cut_to_batches
from .layout import epoch_layout

_CONFIG = "train_dataloader.sampler=dict(type='DefaultSampler', shuffle=True)"


class EpochBatch(list):
    """Indices of a micro-batch's images, which know their epoch.

    Workers that stay from epoch to epoch are not told the epoch otherwise.
    """

    def __init__(self, images: Iterable[int], epoch: int) -> None:
        super().__init__(images)
        self.epoch = epoch


@DATA_SAMPLERS.register_module()
class UpdateBatchSampler(Sampler):
    """Deal out an epoch in updates that are the same on any hardware.

    From (seed, epoch) alone :func:`~.layout.epoch_layout` lays the data set
    out in updates. Of each, rank r takes in micro-step a the images at ``a *
    W * b + r * b`` and the ``b - 1`` after it (W ranks of b images): every
    rank makes the same number of batches, all of them full. A config that
    asks for another order is refused.

    Args:
        sampler (DefaultSampler): The Runner's, of which only the data set is
            used.
        batch_size (int): Images per GPU.
    """

    def __init__(self, sampler: DefaultSampler, batch_size: int) -> None:
        _check_sampler(sampler)
        self.sampler = sampler
        self.batch_size = batch_size
        self.epoch = 0
        self._start = 0
        self._plan: BatchPlan | None = None
        self._landscape: np.ndarray | None = None

    def configure(
        self, plan: BatchPlan, unit_size: int, seed: int, rank: int
    ) -> None:
        """Set what the loop knows, before an epoch."""
        # A resumed run has another seed later.
        if self._plan is None and self.sampler.seed != seed:
            raise ConfigError(
                f'train_dataloader.sampler.seed={self.sampler.seed} is not '
                'used: remove it, and set randomness.seed.'
            )
        images = len(self.sampler.dataset)
        if images < plan.total_batch_size:
            raise ConfigError(
                f'The data set has {images} image(s) to train on (after '
                f'filtering), fewer than an update of {plan.total_batch_size}.'
                ' Set default_hooks.total_batch.total_batch_size to at most '
                f'{images}, or repeat the data set by RepeatDataset.'
            )
        self._plan, self._unit_size = plan, unit_size
        self._seed, self._rank = seed, rank

    def start_at(self, epoch: int, update: int) -> None:
        """Choose the epoch, and the update that the next iteration begins at.

        Iterations after that one begin at the epoch's first. Both from 0.
        """
        self.epoch, self._start = epoch, update

    @property
    def plan(self) -> BatchPlan:
        """The batch of an update."""
        if self._plan is None:
            raise ConfigError(
                'UpdateBatchSampler works with UpdateTrainLoop, which tells '
                "it the update's size: set train_cfg=dict(type="
                "'UpdateTrainLoop', max_epochs=..., _delete_=True)."
            )
        return self._plan

    @property
    def updates_per_epoch(self) -> int:
        """Whole updates that the data set makes."""
        return len(self.sampler.dataset) // self.plan.total_batch_size

    def first_position(self, micro_step: int) -> int:
        """Return the place in the update of a micro-batch's first image."""
        before = micro_step * self.plan.world_size + self._rank
        return before * self.batch_size

    def layout(self, epoch: int) -> np.ndarray:
        """Return the images of all ranks; see :func:`epoch_layout`."""
        total = self.plan.total_batch_size
        if self._landscape is None:
            self._landscape = landscapes(self.sampler.dataset)
        return epoch_layout(
            self._landscape, self._seed, epoch, total, self._unit_size
        )

    def __iter__(self) -> Iterator[EpochBatch]:
        # torch makes an iterator too many for workers that stay; what comes
        # here happens when the first batch is taken.
        start, self._start = self._start, 0
        epoch = self.epoch
        for update in self.layout(epoch)[start:]:
            for micro_step in range(self.plan.accumulation):
                first = self.first_position(micro_step)
                images = update[first : first + self.batch_size]
                yield EpochBatch(images.tolist(), epoch)

    def __len__(self) -> int:
        """Number of micro-batches of a whole epoch on each rank."""
        return self.updates_per_epoch * self.plan.accumulation


def update_sampler(loader: DataLoader) -> UpdateBatchSampler:
    """Return a loader's sampler of updates; another one is refused."""
    sampler = loader.batch_sampler
    if isinstance(sampler, UpdateBatchSampler):
        return sampler
    raise ConfigError(
        'UpdateTrainLoop takes its updates from UpdateBatchSampler, but the '
        f'train dataloader has {type(sampler).__name__}. Set train_dataloader.'
        "batch_sampler=dict(type='UpdateBatchSampler', _delete_=True)."
    )


def count_updates(loader: DataLoader) -> None:
    """Make a loader's length the updates of an epoch, not its batches.

    The log line, the end of an epoch and schedulers that are converted from
    epochs count the Runner's iterations by it. The loader is built already,
    perhaps of a class of the user's own.
    """
    kind = type(loader)
    updates = dict(__len__=lambda self: self.batch_sampler.updates_per_epoch)
    loader.__class__ = type(kind.__name__, (kind,), updates)


def landscapes(dataset: Sized) -> np.ndarray:
    """Return of each image whether it is at least as wide as high.

    Where the data set does not tell the size, it counts as landscape.
    """
    wide = np.ones(len(dataset), bool)
    if hasattr(dataset, 'get_data_info'):
        for index in range(len(dataset)):
            info = dataset.get_data_info(index)
            wide[index] = info.get('width', 0) >= info.get('height', 0)
    return wide


def _check_sampler(sampler: Any) -> None:
    # A subclass may order in its own way.
    if type(sampler) is not DefaultSampler:
        raise ConfigError(
            f'UpdateBatchSampler lays an epoch out by itself, without '
            f'{type(sampler).__name__}: set {_CONFIG}. Rare classes are '
            'repeated by ClassBalancedDataset around the data set instead.'
        )
    if not sampler.shuffle:
        raise ConfigError(
            'UpdateBatchSampler shuffles, against train_dataloader.sampler.'
            f'shuffle=False: set {_CONFIG}.'
        )
    if is_cut_to_batches(sampler.dataset):
        raise ConfigError(
            'train_dataloader.num_batch_per_epoch takes always the same '
            'first images and counts batches, which differ by hardware. '
            'Under UpdateBatchSampler leave it out and set '
            'train_dataloader.dataset.indices to a number of images.'
        )
