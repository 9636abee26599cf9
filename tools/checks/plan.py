# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A config's batch plan on given hardware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from mmdet_megdet.annotations import Epoch
from mmdet_megdet.recipe import (
    BatchPlan,
    PlanError,
    aspect_ratio_note,
    plan_rows,
)
from mmdet_megdet.runtime import find_hook
from mmdet_megdet.sync_bn import bn_sizes

from .model import bn_size_of
from .report import Finding, failure, passed, warning

CHECK = 'batch plan'


def check_plan(
    cfg: Any, model: nn.Module, gpus: int, epoch: Epoch | None
) -> Iterator[Finding]:
    """Say what the optimizer and BatchNorm would see on these GPUs."""
    loader, loop = cfg.get('train_dataloader'), cfg.get('train_cfg') or {}
    if not loader:
        return
    if not gpus:
        text = 'not checked: this machine has no GPU'
        yield warning(CHECK, text, 'Give the GPUs of the run: --gpus N.')
        return
    batch = loader.get('batch_size') or 1
    for size in dict.fromkeys(bn_sizes(model, bn_size_of(cfg)) or [None]):
        total = _total_batch(cfg, gpus, batch)
        try:
            plan = BatchPlan(gpus, batch, total, size)
        except PlanError as error:
            yield failure(CHECK, '; '.join(error.problems), error.remedy)
            continue
        if epoch is None or not loop.get('max_epochs'):
            yield _listed(plan_rows(plan))
        elif loop.get('type') == 'UpdateTrainLoop':
            yield _listed(plan_rows(plan, epoch.images))
            yield from _check_update_epoch(loader, plan, epoch)
        else:
            yield from _check_stock_epoch(loader, plan, epoch)


def _total_batch(cfg: Any, gpus: int, batch: int) -> int:
    """Return the images of an optimizer update."""
    hook = find_hook(cfg, 'TotalBatchHook')
    if hook is not None:
        return hook.get('total_batch_size', 256)
    wrapper = cfg.get('optim_wrapper') or {}
    return gpus * batch * wrapper.get('accumulative_counts', 1)


def _check_update_epoch(
    loader: dict, plan: BatchPlan, epoch: Epoch
) -> Iterator[Finding]:
    if loader.get('num_batch_per_epoch') is not None:
        yield failure(
            CHECK,
            'train_dataloader.num_batch_per_epoch counts batches, which '
            'differ by hardware: UpdateBatchSampler refuses it',
            'Set train_dataloader.dataset.indices to a number of images.',
        )
    elif epoch.images < plan.total_batch_size:
        yield _too_few(epoch.images, plan.total_batch_size, 'an update')


def _check_stock_epoch(
    loader: dict, plan: BatchPlan, epoch: Epoch
) -> Iterator[Finding]:
    """Check an epoch of a loop that counts micro-batches."""
    batch, images = plan.images_per_gpu, epoch.images
    batches = loader.get('num_batch_per_epoch')
    if batches is not None:
        images = batches * plan.images_at_once
    sampler = loader.get('batch_sampler') or {}
    drop_last = sampler.get('drop_last', loader.get('drop_last', False))
    # DefaultSampler repeats images until all ranks have as many.
    each = -(-images // plan.world_size)
    number = each // batch if drop_last else -(-each // batch)
    yield _listed(plan_rows(plan) | {'epoch': f'{number} micro-batches'})
    if number == 0:
        yield _too_few(epoch.images, plan.images_at_once, 'a batch')
    elif epoch.images < images:
        # MMEngine cuts a data set without looking whether it is that long.
        yield _too_few(epoch.images, images, 'num_batch_per_epoch')
    by_orientation = sampler.get('type') == 'AspectRatioBatchSampler'
    if by_orientation and drop_last and epoch.mixed and plan.world_size > 1:
        note = aspect_ratio_note(each, batch)
        if note is not None:
            text, remedy = note.split('. Set ')
            yield failure(CHECK, text, f'Set {remedy}')


def _too_few(images: int, needed: int, what: str) -> Finding:
    return failure(
        CHECK,
        f'the data set has {images} image(s) to train on, fewer than the '
        f'{needed} of {what}',
        'Train with a smaller batch, or repeat the data set by RepeatDataset.',
    )


def _listed(rows: dict[str, str]) -> Finding:
    text = ', '.join(f'{name}: {text}' for name, text in rows.items())
    return passed(CHECK, text)
