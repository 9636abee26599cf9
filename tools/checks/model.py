# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A config's model: what synchronises, does it fit the data, its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from mmdet_megdet.runtime import find_hook
from mmdet_megdet.sync_bn import convert_batch_norm, report_batch_norm
from mmdet_megdet.text import some

from .report import Finding, failure, passed, warning


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


def _values(node: Any, *keys: str) -> Iterator[Any]:
    """Yield what stands under these keys, anywhere in a config."""
    if isinstance(node, dict):
        yield from (node[key] for key in keys if key in node)
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from _values(value, *keys)
