# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Images per GPU and image names of a dataloader; start of its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from types import GeneratorType
from typing import Any

from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..upstream.mmengine_names import (
    built_loop,
    endless_batches,
    has_seed_of_each_rank,
    train_dataloader_config,
)
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
    those are ended here, and the sampler begins again. (A sampler that is no
    config, but an object, goes on behind what they have asked for.)

    A hook that sets something on a loader calls this in ``before_run``; any
    number of them may.
    """
    loop = built_loop(runner, 'train')
    if (
        not isinstance(loop, IterBasedTrainLoop)
        or isinstance(loop.dataloader_iterator, GeneratorType)  # held
        or loop.dataloader.num_workers == 0
    ):
        return
    loader, config = loop.dataloader, train_dataloader_config(runner)
    # Workers end with the iterators that hold them.
    loop.dataloader_iterator = None
    end_workers(loader)
    if isinstance(config, dict):
        anew = runner.build_dataloader(
            _AroundDataset(config, dataset=loader.dataset),
            seed=runner.seed,
            diff_rank_seed=has_seed_of_each_rank(runner),
        )
        # In the same loader, which hooks may know already.
        vars(loader).update(
            sampler=anew.sampler, batch_sampler=anew.batch_sampler
        )
    loop.dataloader_iterator = _late(loader)


def _late(loader: DataLoader) -> Iterator[Sequence]:
    yield from endless_batches(loader)  # starts with the first batch


class _AroundDataset(dict):
    """A dataloader's config whose data set the Runner does not copy."""

    def __init__(self, config: dict, dataset: Any) -> None:
        super().__init__(config, dataset=dataset)
        # The data set is cut by it already.
        self.pop('num_batch_per_epoch', None)

    def __deepcopy__(self, memo: dict) -> dict:
        dataset = self['dataset']
        return deepcopy(dict(self), memo | {id(dataset): dataset})
