# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The numbers behind TotalBatchHook's plan, and the table that it logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..ranks import all_raise, check_same
from ..recipe import BatchPlan, plan_rows
from ..runtime import images_per_gpu
from ..schedulers import WarmupParamScheduler
from ..sync_bn import bn_sizes
from ..upstream.mmengine_names import accumulation_of
from .sync_bn_group import SyncBNGroupHook


def agreed_facts(
    runner: Runner, loader: DataLoader, total_batch_size: int
) -> dict[str, Any]:
    """Return the numbers for a plan, the same on every rank; a collective.

    'BN sizes' are the different ones of the layers, empty where no layer
    synchronises; 'accumulative_counts' is the config's own, None without.
    """
    dataset: Any = loader.dataset
    with all_raise():
        facts = {
            'images per GPU': images_per_gpu(loader),
            'images of the data set': len(dataset),
            'total batch': total_batch_size,
            'BN sizes': _bn_sizes(runner),
            'accumulative_counts': _configured_counts(runner),
        }
    check_same(facts, 'TotalBatchHook')
    return facts


def _bn_sizes(runner: Runner) -> list[int | None]:
    """Return the layers' different BN sizes, as SyncBNGroupHook has them."""
    override: int | Literal['layers'] | None = 'layers'
    for hook in runner.hooks:
        if isinstance(hook, SyncBNGroupHook) and hook.bn_size != 'layers':
            override = hook.bn_size
    return list(dict.fromkeys(bn_sizes(runner.model, override)))


def _configured_counts(runner: Runner) -> int | None:
    config = runner.cfg.get('optim_wrapper')
    if not isinstance(config, dict):
        config = runner.optim_wrapper
    if isinstance(config, dict):
        return config.get('accumulative_counts')
    counts = accumulation_of(config)
    return None if counts == 1 else counts


def batch_rows(
    runner: Runner,
    plans: Sequence[BatchPlan],
    bn_sizes: Sequence[int | None],
) -> dict[str, str]:
    """Return the table's texts by row, of a plan for each BN size.

    There is one plan where no layer has a BN size.
    """
    every = [plan_rows(plan) for plan in plans]
    rows = every[0]
    for name in ('BN statistics', 'BN groups'):
        rows[name] = (
            ' and '.join(row[name] for row in every)
            if bn_sizes
            else 'no MegDetSyncBN layer'
        )
    if not isinstance(runner.train_loop, IterBasedTrainLoop):
        stock = isinstance(runner.train_loop, EpochBasedTrainLoop)
        unit = 'micro-batches' if stock else 'updates'
        rows['epoch'] = f'{len(runner.train_dataloader)} {unit}'
    for scheduler in runner.param_schedulers or []:
        if (
            isinstance(scheduler, WarmupParamScheduler)
            and scheduler.param_name == 'lr'
        ):
            length = scheduler.end - scheduler.begin
            rows['warm-up'] = f'{length} {scheduler.count}'
    return rows
