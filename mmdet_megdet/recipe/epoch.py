# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Iterations and optimizer updates of an epoch."""

from __future__ import annotations

from math import gcd


def iterations_per_epoch(
    dataset_size: int, world_size: int, images_per_gpu: int
) -> int:
    """Length of the recipe's dataloader on each rank.

    MMEngine's ``DefaultSampler`` gives every rank the same number of images,
    repeating a few; ``AspectRatioBatchSampler(drop_last=True)`` makes full
    batches of them and leaves the rest out.

    Args:
        dataset_size (int): Images in the data set, after filtering.
        world_size (int): Number of ranks.
        images_per_gpu (int): Images that each rank sees at once.

    Returns:
        int: Iterations; one less may be made, see :func:`aspect_ratio_note`.
    """
    return images_per_rank(dataset_size, world_size) // images_per_gpu


def images_per_rank(dataset_size: int, world_size: int) -> int:
    """Images that ``DefaultSampler`` gives to each rank in an epoch."""
    return -(-dataset_size // world_size)


def aspect_ratio_note(images_on_rank: int, images_per_gpu: int) -> str | None:
    """Say what mmdet's batches would do where the images come out even.

    ``AspectRatioBatchSampler(drop_last=True)`` (mmdet 3.3.0) joins what
    remains of portraits and of landscapes, and drops it also where that is a
    full batch. A rank has such a remainder only if its images are a whole
    number of batches, and not every rank has it then.

    Args:
        images_on_rank (int): Images of each rank in an epoch.
        images_per_gpu (int): Images that each rank sees at once.

    Returns:
        str, optional: The note, with a remedy, which holds where there are
        portraits and landscapes; None where nothing is wrong.
    """
    # A batch of one is full at once, and leaves no remainder.
    if images_per_gpu == 1 or images_on_rank % images_per_gpu:
        return None
    return (
        f'each rank has {images_on_rank} images an epoch, a whole number of '
        f'batches of {images_per_gpu}. AspectRatioBatchSampler('
        'drop_last=True) then leaves out one full batch on those ranks where '
        'portraits and landscapes fill it only together: ranks would make '
        'different numbers of iterations, and their collectives would not '
        "meet. Set train_cfg.type='UpdateTrainLoop' and "
        "train_dataloader.batch_sampler=dict(type='UpdateBatchSampler'), or "
        'change the images per GPU or their number. (Images of one '
        'orientation alone are no problem.)'
    )


def epoch_note(iterations: int, accumulation: int) -> str | None:
    """What is wrong where an epoch is not a whole number of updates.

    Args:
        iterations (int): Iterations of an epoch.
        accumulation (int): Iterations of an update.

    Returns:
        str, optional: The note, with a remedy; None where nothing is wrong.
    """
    if iterations == 0:
        return (
            'an epoch has no iteration: the data set is smaller than a batch '
            'on each GPU.'
        )
    rest = iterations % accumulation
    if rest == 0:
        return None
    epochs = accumulation // gcd(iterations, accumulation)
    return (
        f'an epoch of {iterations} iterations is not a whole number of '
        f'updates of {accumulation}: a checkpoint at its end falls inside an '
        f'accumulation, and a run resumed there loses the gradient of {rest} '
        'iteration(s). Save where it is whole, every '
        f'{epochs} epochs (default_hooks.checkpoint.interval={epochs}), or '
        'change the images per GPU.'
    )
