# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A config's model: what synchronises, what a checkpoint of it weighs."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from torch import nn

from mmdet_megdet.runtime import find_hook
from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    convert_batch_norm,
    report_batch_norm,
)
from mmdet_megdet.text import some

from .machine import LoaderNeed, check_disk
from .report import Finding, failure, passed, warning

# What a dataloader prefetches for each worker, by torch's default.
_PREFETCH = 2


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
        kind = warning if report.synced else failure
        yield kind(
            check,
            f'{len(report.in_eval)} of {ours} MegDetSyncBN layers are in eval '
            'mode while training and do not synchronise: '
            f'{some(report.in_eval)}',
            'Set norm_eval=False and frozen_stages=-1 in the backbone, unless '
            'they are meant to be frozen.',
        )
    if report.frozen:
        yield warning(
            check,
            f'{len(report.frozen)} layers synchronise, though their weights '
            f'are frozen: {some(report.frozen)}',
            'Set requires_grad=True in norm_cfg, or leave them plain '
            'BatchNorm in eval mode.',
        )
    if report.synced:
        yield passed(check, f'{len(report.synced)} layers synchronise')
    if report.others:
        kinds = sorted(set(report.others.values()))
        yield passed(
            check,
            f'{len(report.others)} layers are {" or ".join(kinds)} and do '
            f'not synchronise: {some(report.others)}',
        )


def check_hooks(cfg: Any, model: nn.Module) -> Iterator[Finding]:
    """Check whether the config has the hooks that its layers need."""
    sizes = {m.bn_size for m in model.modules() if isinstance(m, MegDetSyncBN)}
    if sizes - {None} and find_hook(cfg, 'SyncBNGroupHook') is None:
        yield failure(
            'hooks',
            f'layers have bn_size={sorted(sizes - {None})}, and there is no '
            'SyncBNGroupHook to make the groups',
            "default_hooks=dict(sync_bn_group=dict(type='SyncBNGroupHook')).",
        )


def check_classes(cfg: Any, classes: tuple[str, ...]) -> Iterator[Finding]:
    """Check whether the heads have as many classes as the data set."""
    numbers = sorted(set(_values(cfg.get('model'), 'num_classes')))
    if not numbers or not classes:
        return
    if numbers == [len(classes)]:
        yield passed('num_classes', f'{len(classes)}, as the data set has')
        return
    kind = warning if len(classes) in numbers else failure
    yield kind(
        'num_classes',
        f'{numbers} in the model, and the data set has {len(classes)} '
        f'classes: {some(classes, 5)}',
        'Set num_classes in every head (of box, mask and dense heads) to the '
        'number of classes.',
    )


def check_checkpoints(cfg: Any, model: nn.Module) -> list[Finding]:
    """Hold free disk against the size of the checkpoints that are kept."""
    settings = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    weights = sum(p.nbytes for p in model.parameters())
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    buffers = sum(b.nbytes for b in model.buffers())
    copies = 1 + (find_hook(cfg, 'EMAHook') is not None)
    states = 0
    if settings.get('save_optimizer', True):
        optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer') or {}
        # SGD's momentum, or Adam's two moments.
        states = 1 if optimizer.get('type') == 'SGD' else 2
    size = copies * (weights + buffers) + states * trained
    kept = _kept(cfg, settings)
    # The oldest goes when the new one is there.
    what = (
        f'{copies} x weights, {states} x optimizer; {kept:g} kept and one '
        'being written'
    )
    return [check_disk(cfg.work_dir, size, kept + 1, what)]


def _kept(cfg: Any, settings: dict) -> float:
    most = settings.get('max_keep_ckpts', -1)
    best = settings.get('save_best')
    extra = 0 if not best else 1 if isinstance(best, str) else len(best)
    if most > 0:
        return most + extra
    unit = 'max_epochs' if settings.get('by_epoch', True) else 'max_iters'
    length = (cfg.get('train_cfg') or {}).get(unit) or inf
    interval = settings.get('interval', 1)
    if length == inf or interval <= 0:
        return 1 + extra
    return -(-length // interval) + extra


def loader_need(cfg: Any, gpus: int) -> LoaderNeed | None:
    """Return what a machine's train dataloaders keep in shared memory.

    Args:
        cfg (Config): The config.
        gpus (int): Ranks on the machine.

    Returns:
        LoaderNeed, optional: None if the pipeline has no image size.
    """
    loader = cfg.get('train_dataloader') or {}
    scales = [
        scale
        for value in _values(loader.get('dataset'), 'scale', 'scales')
        for scale in (value if isinstance(value, list) else [value])
        if isinstance(scale, tuple) and len(scale) == 2
    ]
    if not scales:
        return None
    # Three channels of one byte.
    image = 3 * max(width * height for width, height in scales)
    prefetched = loader.get('prefetch_factor') or _PREFETCH
    batches = gpus * loader.get('num_workers', 0) * prefetched
    return LoaderNeed(batches, image * (loader.get('batch_size') or 1))


def bn_size_of(cfg: Any) -> Any:
    """Return SyncBNGroupHook's BN size; 'layers' where it leaves theirs."""
    return (find_hook(cfg, 'SyncBNGroupHook') or {}).get('bn_size', 'layers')


def _values(node: Any, *keys: str) -> Iterator[Any]:
    """Yield what stands under these keys, anywhere in a config."""
    if isinstance(node, dict):
        yield from (node[key] for key in keys if key in node)
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from _values(value, *keys)
