# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a Runner says of its batch, and whether all ranks say the same."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_gather_object
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..runtime.batch import images_per_gpu
from ..runtime.config import ConfigError
from ..sync_bn import bn_sizes
from .sync_bn_group import SyncBNGroupHook


def agreed_facts(
    runner: Runner, loader: DataLoader, total_batch_size: int
) -> dict[str, Any]:
    """What a plan is made from, the same on every rank.

    A collective: all ranks call it, and what is wrong on one of them is
    raised on all, or the others would wait for it.

    Args:
        runner (Runner): With its model.
        loader (DataLoader): For training.
        total_batch_size (int): Images of an optimizer update.

    Returns:
        dict[str, Any]: 'images per GPU', 'images of the data set', 'total
        batch', 'BN sizes' (the different ones; empty where no layer
        synchronises), and the config's own 'accumulative_counts' (None if it
        has none).

    Raises:
        ConfigError: If ranks differ, or one cannot tell.
    """
    try:
        facts = {
            'images per GPU': images_per_gpu(loader),
            'images of the data set': len(loader.dataset),
            'total batch': total_batch_size,
            'BN sizes': model_bn_sizes(runner),
            'accumulative_counts': _configured_counts(runner),
        }
    except ValueError as error:
        facts = dict(error=str(error))
    by_rank = all_gather_object(facts)
    for found in by_rank:
        if 'error' in found:
            raise ConfigError(f'TotalBatchHook: {found["error"]}')
    for rank, found in enumerate(by_rank):
        differences = [
            f'{key} is {by_rank[0][key]} on rank 0 and {found[key]} on rank '
            f'{rank}'
            for key in found
            if found[key] != by_rank[0][key]
        ]
        if differences:
            raise ConfigError(
                f'TotalBatchHook: ranks differ: {"; ".join(differences)}. '
                'Start all of them with the same config and options.'
            )
    return by_rank[0]


def micro_batches_per_epoch(runner: Runner) -> int | None:
    """Return a stock loop's iterations of an epoch; None without epochs."""
    if isinstance(runner.train_loop, IterBasedTrainLoop):
        return None
    return len(runner.train_dataloader)


def batches_note(loader: DataLoader) -> str | None:
    """What is wrong where an epoch's batches are not all full ones.

    Returns:
        str, optional: The note, with a remedy; None where nothing is wrong.
    """
    sampler = loader.batch_sampler
    if not hasattr(sampler, 'drop_last'):
        return None
    images, each = len(sampler.sampler), images_per_gpu(loader)
    if sampler.drop_last or images % each == 0:
        return None
    return (
        f'the last batch of an epoch holds {images % each} image(s) instead '
        f'of {each} on each GPU, and its update fewer than the others. Leave '
        'it out with drop_last=True (of the batch sampler, or of the '
        'dataloader where it has none).'
    )


def model_bn_sizes(runner: Runner) -> list[int | None]:
    """The different BN sizes of the model's layers, as SyncBNGroupHook says.

    Empty where no layer synchronises.
    """
    override = 'layers'
    for hook in runner.hooks:
        if isinstance(hook, SyncBNGroupHook) and hook.bn_size != 'layers':
            override = hook.bn_size
    return list(dict.fromkeys(bn_sizes(runner.model, override)))


def _configured_counts(runner: Runner) -> int | None:
    """``accumulative_counts`` as the config has it; None if it has not."""
    config = runner.cfg.get('optim_wrapper')
    if not isinstance(config, dict):
        config = runner.optim_wrapper
    if isinstance(config, dict):
        return config.get('accumulative_counts')
    counts = config._accumulative_counts
    return None if counts == 1 else counts
