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
        epoch (Epoch, optional): Pictures of an epoch, where that is known.
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
    rows, findings = plan_rows(plan), []
    if epoch is not None and (cfg.get('train_cfg') or {}).get('max_epochs'):
        rows['epoch'], findings = _of_epoch(cfg, plan, epoch)
    yield passed(CHECK, ', '.join(f'{k}: {v}' for k, v in rows.items()))
    yield from findings


def _of_epoch(
    cfg: Any, plan: BatchPlan, epoch: Epoch
) -> tuple[str, list[Finding]]:
    """The length of an epoch, and what is to be said of it."""
    loader = cfg.train_dataloader
    images, findings = epoch.images, []
    batches = loader.get('num_batch_per_epoch')
    if batches is not None:
        # MMEngine takes that many images, whether they are there or not.
        asked = batches * plan.images_at_once
        if asked > images:
            findings.append(
                failure(
                    CHECK,
                    f'num_batch_per_epoch={batches} takes {asked} images, '
                    f'and the data set has {images}',
                    'Set train_dataloader.num_batch_per_epoch to at most '
                    f'{images // plan.images_at_once}, or leave it out.',
                )
            )
        images = asked
    sampler = (loader.get('batch_sampler') or {}).get('type')
    count = _of_updates if sampler == 'UpdateBatchSampler' else _of_batches
    length, more = count(cfg, plan, epoch._replace(images=images))
    return length, findings + more


def _of_updates(
    cfg: Any, plan: BatchPlan, epoch: Epoch
) -> tuple[str, list[Finding]]:
    """An epoch of UpdateBatchSampler."""
    length = plan_rows(plan, epoch.images)['epoch']
    if epoch.images >= plan.total_batch_size:
        return length, []
    return length, [
        failure(
            CHECK,
            f'the data set has {epoch.images} image(s) to train on, fewer '
            f'than an update of {plan.total_batch_size}',
            'Set default_hooks.total_batch.total_batch_size to at most '
            f'{epoch.images}, or repeat the data set by RepeatDataset.',
        )
    ]


def _of_batches(
    cfg: Any, plan: BatchPlan, epoch: Epoch
) -> tuple[str, list[Finding]]:
    """An epoch of DefaultSampler, which gives all ranks as many images."""
    batch = plan.images_per_gpu
    each = -(-epoch.images // plan.world_size)
    loader = cfg.train_dataloader
    sampler = loader.get('batch_sampler') or {}
    drop_last = sampler.get('drop_last', loader.get('drop_last', False))
    iterations = each // batch if drop_last else -(-each // batch)
    findings = []
    if not iterations:
        findings.append(
            failure(
                CHECK,
                f'an epoch has no iteration: the {epoch.images} image(s) to '
                f'train on make no batch of {batch} on each GPU',
                'Set train_dataloader.batch_size lower, or drop_last=False.',
            )
        )
    elif each % batch and not drop_last:
        findings.append(
            warning(
                CHECK,
                f'the last batch of an epoch holds {each % batch} image(s) '
                f'instead of {batch} on each GPU',
                'drop_last=True of the batch sampler leaves it out.',
            )
        )
    if iterations % plan.accumulation:
        findings.append(
            warning(
                CHECK,
                f'an epoch of {iterations} iterations is not a whole number '
                f'of updates of {plan.accumulation}: a checkpoint at its end '
                'falls inside an accumulation',
                'Train by UpdateTrainLoop and UpdateBatchSampler, or save '
                'where it is whole.',
            )
        )
    note = aspect_ratio_note(each, batch)
    if (
        note is not None
        and drop_last
        and epoch.mixed
        and plan.world_size > 1
        and sampler.get('type') == 'AspectRatioBatchSampler'
    ):
        text, remedy = note.split('. Set ')
        findings.append(failure(CHECK, text, f'Set {remedy}'))
    return f'{iterations} iterations', findings
