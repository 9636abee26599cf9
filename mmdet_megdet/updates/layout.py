# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The order of an epoch: which images are in which update."""

from __future__ import annotations

import numpy as np

from ..errors import ConfigError
from .random_streams import seed_sequence


def epoch_layout(
    landscape: np.ndarray,
    seed: int,
    epoch: int,
    total_batch_size: int,
    unit_size: int,
) -> np.ndarray:
    """Lay a data set out in updates of units of one orientation.

    Contract:

    - It depends on the arguments alone, on any machine.
    - Each image is in it at most once. Fewer images than an update are left
      out, none of them in two epochs that follow each other, and each as
      often as any other.
    - Each unit of ``unit_size`` consecutive images is of one orientation,
      but for at most one unit of the epoch. Units are shuffled.

    Args:
        landscape (np.ndarray): Of each image, whether it is at least as wide
            as high.
        seed (int): Seed of the run.
        epoch (int): Epoch, from 0.
        total_batch_size (int): Images of an update.
        unit_size (int): Images of a unit; divides ``total_batch_size``.

    Returns:
        np.ndarray: Indices of images, (updates, total_batch_size).
    """
    images = len(landscape)
    updates, rest = divmod(images, total_batch_size)
    if updates == 0:
        return np.empty((0, total_batch_size), np.int64)

    # What is left out moves on through one fixed order. It is always fewer
    # than half of the images, hence never the same twice running.
    taken = np.ones(images, bool)
    left_out = np.arange(epoch * rest, (epoch + 1) * rest) % images
    taken[_generator(seed).permutation(images)[left_out]] = False

    generator = _generator(seed, epoch)
    order = generator.permutation(images)
    order = order[taken[order]]
    wide = landscape[order]
    # The unit where one orientation ends and the other begins is the mixed
    # one, since the two together are whole units.
    units = np.concatenate([order[wide], order[~wide]])
    units = units.reshape(-1, unit_size)
    units = units[generator.permutation(len(units))]
    return units.reshape(updates, total_batch_size)


def unit_of(total_batch_size: int, bn_sizes: list[int | None]) -> int:
    """Return the number of images that are to be of one orientation.

    That is the BN size, so that statistics are over the same images on any
    hardware; where BatchNorm does not count images (None), up to 32 of them.
    """
    sizes = [size for size in bn_sizes if size is not None]
    if not sizes:
        return max(
            size
            for size in range(1, min(32, total_batch_size) + 1)
            if total_batch_size % size == 0
        )
    largest = max(sizes)
    for size in sizes:
        if largest % size:
            raise ConfigError(
                f'BN sizes {size} and {largest} of different layers: choose '
                'sizes of which the largest is a multiple of the others.'
            )
    return largest


# RandomState's numbers are promised to stay as they are in numpy's versions
# to come, default_rng's are not.
def _generator(*words: int) -> np.random.RandomState:
    return np.random.RandomState(np.random.MT19937(seed_sequence(*words)))
