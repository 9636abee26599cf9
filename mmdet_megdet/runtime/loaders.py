# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What batches a dataloader makes, told before it makes them."""

from __future__ import annotations

import random
from collections.abc import Sized
from itertools import islice
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object
from torch.utils.data import DataLoader

from ..recipe import aspect_ratio_note
from .config import ConfigError

# Of MMEngine and mmdet.
_ENDLESS = ('InfiniteSampler', 'MultiSourceSampler')


def check_lengths(loader: DataLoader, kind: str, lengths: list[int]) -> None:
    """Refuse a loader that makes no batch.

    Args:
        loader (DataLoader): The loader of this rank.
        kind (str): Whose it is: 'train', 'val' or 'test'.
        lengths (list[int]): Of the loaders of all ranks. In training each
            must make a batch, otherwise one of them.

    Raises:
        ConfigError: If it makes none.
    """
    if all(lengths) if kind == 'train' else any(lengths):
        return
    raise ConfigError(
        f'{kind}_dataloader makes no batch on rank {lengths.index(0)}: the '
        f'data set has {len(loader.dataset)} image(s) (after filtering), and '
        f'a batch of a rank takes {_batch_size(loader)}. Check its ann_file '
        'and filter_cfg, take fewer images per GPU or fewer GPUs, or repeat '
        'the data set by RepeatDataset.'
    )


def check_end(loader: DataLoader, kind: str) -> None:
    """Refuse a loader that does not stop, for a loop that waits for it.

    Args:
        loader (DataLoader): The loader of this rank.
        kind (str): Whose it is: 'train', 'val' or 'test'.

    Raises:
        ConfigError: If it does not; on this rank alone.
    """
    sampler = _innermost_sampler(loader)
    if not _is_endless(sampler):
        return
    remedy = f"{kind}_dataloader.sampler=dict(type='DefaultSampler')"
    if kind == 'train':
        remedy += ", or train_cfg.type='IterBasedTrainLoop'"
    raise ConfigError(
        f'{kind}_dataloader: {type(sampler).__name__} gives more than the '
        f'{len(sampler)} it says, without an end, and the loop waits for the '
        f'end. Set {remedy}.'
    )


def check_orientations(loader: DataLoader) -> None:
    """Refuse mmdet's batches by orientation where ranks can differ.

    A collective. How many batches a rank makes depends on how many of its
    images are portraits in that epoch; see :func:`aspect_ratio_note`.

    Args:
        loader (DataLoader): The train loader of this rank.

    Raises:
        ConfigError: On every rank.
    """
    note = _orientation_note(loader.batch_sampler)
    notes = [found for found in all_gather_object(note) if found is not None]
    # The look at the data may take seconds: only if it matters.
    if notes and _has_both_orientations(loader.batch_sampler.sampler.dataset):
        raise ConfigError(notes[0])


def _orientation_note(sampler: Any) -> str | None:
    # By name, since nothing else here needs mmdet.
    names = [kind.__name__ for kind in type(sampler).__mro__]
    if not getattr(sampler, 'drop_last', False):
        return None
    if 'MultiDataAspectRatioBatchSampler' in names:
        return (
            'MultiDataAspectRatioBatchSampler(drop_last=True) makes batches '
            'of each data set apart, of which every rank draws another '
            'number: ranks would make different numbers of iterations, and '
            'wait for each other in vain. Train by iteration '
            "(train_cfg.type='IterBasedTrainLoop')."
        )
    if 'AspectRatioBatchSampler' in names:
        return aspect_ratio_note(len(sampler.sampler), sampler.batch_size)
    return None


def _has_both_orientations(dataset: Any) -> bool:
    seen = set()
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        # Those of videos have it in their frames.
        info = info['images'][0] if 'images' in info else info
        seen.add(info['width'] < info['height'])
        if len(seen) == 2:
            return True
    return False


def _batch_size(loader: DataLoader) -> Any:
    return loader.batch_size or getattr(
        loader.batch_sampler, 'batch_size', 'another number'
    )


def _innermost_sampler(loader: DataLoader) -> Any:
    """What is iterated for an epoch: of indices where there is such a one.

    (mmdet's batch samplers would keep what was not asked for to the end.)
    """
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return getattr(batches, 'sampler', batches)


def _is_endless(sampler: Any) -> bool:
    if any(kind.__name__ in _ENDLESS for kind in type(sampler).__mro__):
        return True
    if not isinstance(sampler, Sized) or len(sampler) == 0:
        return False
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    more = next(islice(sampler, len(sampler), None), None)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return more is not None
