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
_TOTAL_OPTION = '--cfg-options default_hooks.total_batch.total_batch_size={}'


def check_plan(
    cfg: Any, model: nn.Module, gpus: int, epoch: Epoch | None
) -> Iterator[Finding]:
    """Say what the optimizer and BatchNorm would see.

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
    if not (cfg.get('train_cfg') or {}).get('max_epochs'):
        epoch = None
    for size in dict.fromkeys(bn_sizes(model, bn_size_of(cfg)) or [None]):
        total = _total_batch(cfg, gpus, batch)
        try:
            plan = BatchPlan(gpus, batch, total, size)
        except PlanError as error:
            yield failure(
                CHECK,
                '; '.join(error.problems),
                error.explain(_TOTAL_OPTION).split('. ', 1)[1],
            )
            continue
        if epoch is None:
            yield passed(CHECK, _listed(plan_rows(plan)))
        elif cfg.train_cfg.get('type') == 'UpdateTrainLoop':
            yield from _by_update(cfg, plan, epoch)
        else:
            yield from _by_batch(cfg, plan, epoch)


def _total_batch(cfg: Any, gpus: int, batch: int) -> int:
    """Return the images of an optimizer update."""
    hook = find_hook(cfg, 'TotalBatchHook')
    if hook is not None:
        return hook.get('total_batch_size', 256)
    wrapper = cfg.get('optim_wrapper') or {}
    return gpus * batch * wrapper.get('accumulative_counts', 1)


def _by_update(cfg: Any, plan: BatchPlan, epoch: Epoch) -> Iterator[Finding]:
    """Check an epoch of UpdateTrainLoop."""
    batches = cfg.train_dataloader.get('num_batch_per_epoch')
    if batches is not None:
        yield failure(
            CHECK,
            f'train_dataloader.num_batch_per_epoch={batches} counts batches, '
            'which differ by hardware, and UpdateBatchSampler refuses it',
            'Leave it out, and set train_dataloader.dataset.indices to a '
            'number of images.',
        )
    elif epoch.images < plan.total_batch_size:
        yield _too_few(epoch.images, plan.total_batch_size, 'an update')
    yield passed(CHECK, _listed(plan_rows(plan, epoch.images)))


def _by_batch(cfg: Any, plan: BatchPlan, epoch: Epoch) -> Iterator[Finding]:
    """Check an epoch of a stock loop, which counts micro-batches."""
    loader, batch = cfg.train_dataloader, plan.images_per_gpu
    sampler = loader.get('batch_sampler') or {}
    drop_last = sampler.get('drop_last', loader.get('drop_last', False))
    images, batches = epoch.images, loader.get('num_batch_per_epoch')
    if batches is not None:
        # MMEngine cuts a data set without looking whether it is that long.
        images = batches * plan.images_at_once
        if images > epoch.images:
            yield failure(
                CHECK,
                f'num_batch_per_epoch takes {images} images, and the data set '
                f'has {epoch.images}',
                'Set train_dataloader.num_batch_per_epoch to at most '
                f'{epoch.images // plan.images_at_once}, or leave it out.',
            )
    # DefaultSampler repeats images until all ranks have as many.
    each, needed = -(-images // plan.world_size), 1
    if drop_last:
        needed += (batch - 1) * plan.world_size
    if min(images, epoch.images) < needed:
        what = f'a batch of {batch} on each GPU'
        yield _too_few(min(images, epoch.images), needed, what)
    number = each // batch if drop_last else -(-each // batch)
    rows = plan_rows(plan) | {'epoch': f'{number} micro-batches'}
    yield passed(CHECK, _listed(rows))
    if not drop_last and each % batch:
        yield warning(
            CHECK,
            f'the last batch of an epoch holds {each % batch} image(s) '
            f'instead of {batch} on each GPU (drop_last=True of the batch '
            'sampler leaves it out)',
            'docs/recipe.md says more.',
        )
    if (
        plan.world_size > 1
        and epoch.mixed
        and sampler.get('type') == 'AspectRatioBatchSampler'
        and sampler.get('drop_last', False)
        and (refusal := aspect_ratio_note(each, batch))
    ):
        text, remedy = refusal.split('. Set ')
        yield failure(CHECK, text, f'Set {remedy}')


def _too_few(images: int, needed: int, what: str) -> Finding:
    return failure(
        CHECK,
        f'the data set has {images} image(s) to train on, fewer than {what} '
        f'needs ({needed})',
        'Train with a smaller batch, or repeat the data set by RepeatDataset.',
    )


def _listed(rows: dict[str, str]) -> str:
    return ', '.join(f'{name}: {text}' for name, text in rows.items())
