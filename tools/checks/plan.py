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
from mmdet_megdet.sync_bn import bn_sizes

from .model import find_hook
from .report import Finding, failure, passed, warning

CHECK = 'batch plan'
_TOTAL_OPTION = '--cfg-options default_hooks.total_batch.total_batch_size={}'


def check_plan(
    cfg: Any, model: nn.Module, gpus: int, epoch: Epoch | None
) -> Iterator[Finding]:
    """What the optimizer and BatchNorm would see.

    Args:
        cfg (Config): The config.
        model (nn.Module): Its model.
        gpus (int): Ranks of the run.
        epoch (Epoch, optional): Images of an epoch, where that is known.
    """
    loader = cfg.get('train_dataloader') or {}
    batch = loader.get('batch_size')
    if batch is None:
        yield warning(
            CHECK,
            'not checked: train_dataloader has no batch_size',
            'tools/plan.py tells it from numbers.',
        )
        return
    for size in planned_bn_sizes(cfg, model):
        yield from _check_one(cfg, gpus, batch, size, epoch)


def planned_bn_sizes(cfg: Any, model: nn.Module) -> list[int | None]:
    """The different BN sizes of the layers, as SyncBNGroupHook has them."""
    hook = find_hook(cfg, 'SyncBNGroupHook') or {}
    sizes = bn_sizes(model, hook.get('bn_size', 'layers'))
    return list(dict.fromkeys(sizes)) or [None]


def total_batch(cfg: Any, gpus: int, batch: int) -> int:
    """Images of an optimizer update."""
    hook = find_hook(cfg, 'TotalBatchHook')
    if hook is not None:
        return hook.get('total_batch_size', 256)
    wrapper = cfg.get('optim_wrapper') or {}
    return gpus * batch * wrapper.get('accumulative_counts', 1)


def _check_one(
    cfg: Any, gpus: int, batch: int, bn_size: int | None, epoch: Epoch | None
) -> Iterator[Finding]:
    try:
        plan = BatchPlan(gpus, batch, total_batch(cfg, gpus, batch), bn_size)
    except PlanError as error:
        yield failure(
            CHECK,
            '; '.join(error.problems),
            error.explain(_TOTAL_OPTION).split('. ', 1)[1],
        )
        return
    loop = cfg.get('train_cfg') or {}
    if epoch is not None and loop.get('max_epochs'):
        yield from _of_images(cfg, plan, epoch)
        epoch = _as_cut(cfg, plan, epoch)
    if epoch is not None and loop.get('type') == 'UpdateTrainLoop':
        yield passed(CHECK, _listed(plan_rows(plan, epoch.images)))
        return
    rows, note = plan_rows(plan), None
    if epoch is not None and loop.get('max_epochs'):
        rows['epoch'], note = _of_epoch(cfg, plan, epoch)
    yield passed(CHECK, _listed(rows))
    if note is not None:
        yield warning(CHECK, note, 'docs/recipe.md says more.')
    refusal = _of_orientations(cfg, plan, epoch) if 'epoch' in rows else None
    if refusal is not None:
        text, remedy = refusal.split('. Set ')
        yield failure(CHECK, text, f'Set {remedy}')


def _as_cut(cfg: Any, plan: BatchPlan, epoch: Epoch) -> Epoch:
    """The epoch as ``num_batch_per_epoch`` cuts it."""
    batches = cfg.train_dataloader.get('num_batch_per_epoch')
    if batches is None:
        return epoch
    return epoch._replace(images=batches * plan.images_at_once)


def _of_images(cfg: Any, plan: BatchPlan, epoch: Epoch) -> Iterator[Finding]:
    """Whether there are enough images to train on."""
    by_update = cfg.train_cfg.get('type') == 'UpdateTrainLoop'
    batches = cfg.train_dataloader.get('num_batch_per_epoch')
    if by_update and batches is not None:
        yield failure(
            CHECK,
            f'train_dataloader.num_batch_per_epoch={batches} counts batches, '
            'which differ by hardware, and UpdateBatchSampler refuses it',
            'Leave it out, and set train_dataloader.dataset.indices to a '
            'number of images.',
        )
        return
    # MMEngine cuts a data set without looking whether it is that long.
    asked = _as_cut(cfg, plan, epoch).images
    if asked > epoch.images:
        yield failure(
            CHECK,
            f'num_batch_per_epoch takes {asked} images, and the data set has '
            f'{epoch.images}',
            'Set train_dataloader.num_batch_per_epoch to at most '
            f'{epoch.images // plan.images_at_once}, or leave it out.',
        )
    if by_update:
        needed, what = plan.total_batch_size, 'an update'
    else:
        loader = cfg.train_dataloader
        sampler = loader.get('batch_sampler') or loader
        # DefaultSampler repeats images until all ranks have as many.
        each = plan.images_per_gpu if sampler.get('drop_last', False) else 1
        needed = (each - 1) * plan.world_size + 1
        what = f'a batch of {plan.images_per_gpu} on each GPU'
    if min(asked, epoch.images) < needed:
        yield failure(
            CHECK,
            f'the data set has {min(asked, epoch.images)} image(s) to train '
            f'on, fewer than {what} needs ({needed})',
            'Train with a smaller batch, or repeat the data set by '
            'RepeatDataset.',
        )


def _of_orientations(cfg: Any, plan: BatchPlan, epoch: Epoch) -> str | None:
    """Why training would refuse the batches that the sampler makes."""
    sampler = cfg.train_dataloader.get('batch_sampler') or {}
    if (
        plan.world_size == 1
        or not epoch.mixed
        or sampler.get('type') != 'AspectRatioBatchSampler'
        or not sampler.get('drop_last', False)
    ):
        return None
    each = -(-epoch.images // plan.world_size)
    return aspect_ratio_note(each, plan.images_per_gpu)


def _of_epoch(
    cfg: Any, plan: BatchPlan, epoch: Epoch
) -> tuple[str, str | None]:
    """Micro-batches of a stock loop's epoch, and what is to be said."""
    batch = plan.images_per_gpu
    # MMEngine's DefaultSampler repeats a few.
    each = -(-epoch.images // plan.world_size)
    loader = cfg.train_dataloader
    sampler = loader.get('batch_sampler') or {}
    if sampler.get('drop_last', loader.get('drop_last', False)):
        return f'{each // batch} micro-batches', None
    note = None
    if each % batch:
        note = (
            f'the last batch of an epoch holds {each % batch} image(s) '
            f'instead of {batch} on each GPU (drop_last=True of the batch '
            'sampler leaves it out)'
        )
    return f'{-(-each // batch)} micro-batches', note


def _listed(rows: dict[str, str]) -> str:
    return ', '.join(f'{name}: {text}' for name, text in rows.items())
