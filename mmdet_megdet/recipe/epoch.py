# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Iterations of an epoch under MMEngine's stock samplers."""

from __future__ import annotations


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
