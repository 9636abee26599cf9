# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Images per GPU and image names of a dataloader; start of its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..upstream import mmengine_names
from ..upstream.torch_names import end_workers


def images_per_gpu(loader: DataLoader) -> int:
    """Return the number of images that each rank sees in one iteration."""
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, 'batch_size', None)
    if size is None:
        raise ConfigError(
            'The number of images per GPU is not known: '
            f'{type(loader.batch_sampler).__name__} has no batch_size.'
        )
    return size


def image_names(batch: Any) -> list[str]:
    """Return the ids of a batch's images, with paths, as far as it tells."""
    metainfo = getattr(batch, 'metainfo', None)
    if isinstance(metainfo, Mapping) and 'img_id' in metainfo:
        path = metainfo.get('img_path')
        return [f'{metainfo["img_id"]}' + (f' ({path})' if path else '')]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        return []
    return [name for part in batch for name in image_names(part)]


def hold_workers(runner: Runner) -> None:
    """Start the workers of the training dataloader with its first batch.

    What a worker is to know must be on its loader when it starts. MMEngine's
    IterBasedTrainLoop starts its workers when it is built, ahead of all hooks:
    those are ended here, and MMEngine's samplers begin again, and a config's
    batch sampler. (Others go on behind what they have been asked for.)

    A hook that sets something on a loader calls this in ``before_run``; any
    number of them may.
    """
    loop = mmengine_names.built_loop(runner, 'train')
    if (
        not isinstance(loop, IterBasedTrainLoop)
        or isinstance(loop.dataloader_iterator, GeneratorType)  # held
        or loop.dataloader.num_workers == 0
    ):
        return
    # Workers end with the iterators that hold them.
    loop.dataloader_iterator = None
    end_workers(loop.dataloader)
    mmengine_names.begin_again(runner, loop.dataloader)
    loop.dataloader_iterator = _late(loop.dataloader)


def _late(loader: DataLoader) -> Iterator[Sequence]:
    """Iterate without end; workers start with the first batch."""
    yield from mmengine_names.endless_batches(loader)
