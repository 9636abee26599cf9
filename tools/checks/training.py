# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A config's model and batch plan: what synchronises and what fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
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
from mmdet_megdet.sync_bn import (
    bn_sizes,
    convert_batch_norm,
    report_batch_norm,
)
from mmdet_megdet.text import some

from .report import Finding, failure, passed, warning

_PLAN = 'batch plan'


def build_model(cfg: Any) -> nn.Module:
    """Build the config's model in training mode, BatchNorm converted.

    On the CPU and without initialising its weights.
    """
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope(cfg.get('default_scope') or 'mmengine')
    model = MODELS.build(cfg.model)
    wrapper = cfg.get('model_wrapper_cfg') or {}
    convert = wrapper.get('convert_bn')
    parts = [''] if convert is True else convert or []
    for name in parts:
        convert_batch_norm(model.get_submodule(name), wrapper.get('bn_size'))
    return model.train()


def check_batch_norm(model: nn.Module) -> Iterator[Finding]:
    """Say which norm layers synchronise, and which do not."""
    check = 'BatchNorm'
    report = report_batch_norm(model)
    ours = len(report.synced) + len(report.in_eval)
    if not ours:
        yield warning(
            check,
            f'no layer is MegDetSyncBN; {len(report.others)} are another '
            'BatchNorm',
            "Set norm_cfg=dict(type='MegDetSyncBN') in the model, or "
            'model_wrapper_cfg.convert_bn, if BatchNorm is to synchronise.',
        )
        return
    if report.in_eval:
        yield (warning if report.synced else failure)(
            check,
            f'{len(report.in_eval)} of {ours} MegDetSyncBN layers are in eval '
            'mode while training and do not synchronise: '
            f'{some(report.in_eval)}',
            'Set norm_eval=False and frozen_stages=-1 in the backbone, unless '
            'they are meant to be frozen.',
        )
    if report.synced:
        yield passed(check, f'{len(report.synced)} layers synchronise')
    if report.others:
        yield passed(
            check,
            f'{len(report.others)} layers are another BatchNorm and do not '
            f'synchronise: {some(report.others)}',
        )


def check_classes(cfg: Any, classes: tuple[str, ...]) -> Iterator[Finding]:
    """Check whether the heads have as many classes as the data set."""
    numbers = sorted(set(_values(cfg.get('model'), 'num_classes')))
    if not numbers or not classes:
        return
    if numbers == [len(classes)]:
        yield passed('num_classes', f'{len(classes)}, as the data set has')
        return
    yield (warning if len(classes) in numbers else failure)(
        'num_classes',
        f'{numbers} in the model, and the data set has {len(classes)} '
        f'classes: {some(classes, 5)}',
        'Set num_classes in every head (of box, mask and dense heads) to the '
        'number of classes.',
    )


def check_weights(cfg: Any) -> Iterator[Finding]:
    """Look for the files that training starts from; no address is asked."""
    names = _values(cfg.get('model'), 'checkpoint', 'pretrained')
    for name in [*names, cfg.get('load_from')]:
        if not isinstance(name, str) or '://' in name:
            continue
        if not Path(name).expanduser().is_file():
            remedy = 'Mend the path in the config.'
            yield failure('weights', f'there is no file {name}', remedy)


def bn_size_of(cfg: Any) -> Any:
    """Return SyncBNGroupHook's BN size; 'layers' where it leaves theirs."""
    return (find_hook(cfg, 'SyncBNGroupHook') or {}).get('bn_size', 'layers')


def check_plan(
    cfg: Any, model: nn.Module, gpus: int, epoch: Epoch | None
) -> Iterator[Finding]:
    """Say what the optimizer and BatchNorm would see on these GPUs."""
    loader, loop = cfg.get('train_dataloader'), cfg.get('train_cfg') or {}
    if not loader:
        return
    if not gpus:
        text = 'not checked: this machine has no GPU'
        yield warning(_PLAN, text, 'Give the GPUs of the run: --gpus N.')
        return
    batch = loader.get('batch_size') or 1
    for size in dict.fromkeys(bn_sizes(model, bn_size_of(cfg)) or [None]):
        total = _total_batch(cfg, gpus, batch)
        try:
            plan = BatchPlan(gpus, batch, total, size)
        except PlanError as error:
            yield failure(_PLAN, '; '.join(error.problems), error.remedy)
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
            _PLAN,
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
            yield failure(_PLAN, text, f'Set {remedy}')


def _too_few(images: int, needed: int, what: str) -> Finding:
    return failure(
        _PLAN,
        f'the data set has {images} image(s) to train on, fewer than the '
        f'{needed} of {what}',
        'Train with a smaller batch, or repeat the data set by RepeatDataset.',
    )


def _listed(rows: dict[str, str]) -> Finding:
    text = ', '.join(f'{name}: {text}' for name, text in rows.items())
    return passed(_PLAN, text)


def _values(node: Any, *keys: str) -> Iterator[Any]:
    """Yield what stands under these keys, anywhere in a config."""
    if isinstance(node, dict):
        yield from (node[key] for key in keys if key in node)
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from _values(value, *keys)
