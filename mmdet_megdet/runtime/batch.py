# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a dataloader says of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader


def images_per_gpu(loader: DataLoader) -> int:
    """Number of images that each rank sees in one iteration.

    Args:
        loader (DataLoader): Built by the Runner, with a batch size or with a
            batch sampler that has one, as mmdet's ``AspectRatioBatchSampler``.

    Returns:
        int: The batch size; the last batch of an epoch may be smaller.

    Raises:
        ValueError: If the loader's batch sampler does not say.
    """
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, 'batch_size', None)
    if size is None:
        raise ValueError(
            'The number of images per GPU is not known: '
            f'{type(loader.batch_sampler).__name__} has no batch_size. Give '
            'the batch sampler that attribute, or use one that has it, such '
            'as AspectRatioBatchSampler.'
        )
    return size


def image_names(batch: Any) -> list[str]:
    """Which images a batch holds, as far as it tells.

    Args:
        batch (Any): What a dataloader yields: containers, in which mmdet's
            data samples (or others with ``metainfo``) are looked for.

    Returns:
        list[str]: Their ids, with the path where that is known too.
    """
    metainfo = getattr(batch, 'metainfo', None)
    if isinstance(metainfo, Mapping) and 'img_id' in metainfo:
        path = metainfo.get('img_path')
        return [f'{metainfo["img_id"]}' + (f' ({path})' if path else '')]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        return []
    return [name for part in batch for name in image_names(part)]
