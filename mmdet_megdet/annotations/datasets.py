# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Find which annotation files a config reads, and for which purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .verdict import Verdict


class Use(NamedTuple):
    """A data set in COCO's format, as a config uses it."""

    role: str  # 'train', 'val' or 'test'
    path: str  # of its annotation file
    classes: tuple[str, ...]  # metainfo's, or the type's own
    with_masks: bool  # whether its pipeline loads masks
    folder: str  # of the images
    color_type: str | None  # LoadImageFromFile's, where OpenCV decodes them
    filters: bool  # whether it filters as mmdet's CocoDataset does
    rule: dict  # filter_cfg, as far as it holds
    indices: Any
    config: dict  # its part of the config


class Evaluation(NamedTuple):
    """An annotation file by which CocoMetric evaluates."""

    role: str  # 'val' or 'test'
    path: str
    with_masks: bool  # whether masks are evaluated
    format_only: bool  # whether predictions are only written


def configured(
    cfg: Any, roles: Sequence[str]
) -> tuple[list[Use], list[Evaluation], list[Verdict]]:
    """Return what a config reads for some of 'train', 'val' and 'test'.

    With the data sets and the evaluations comes a verdict on each data set
    whose file is not judged.
    """
    uses: list[Use] = []
    evaluations: list[Evaluation] = []
    verdicts: list[Verdict] = []
    scope = cfg.get('default_scope') or 'mmengine'
    for role in roles:
        loader = cfg.get(f'{role}_dataloader') or {}
        for config in _data_sets(loader.get('dataset')):
            try:
                uses.append(_use(config, role, scope))
            except _NotUsedError as found:
                level, text, remedy = found.args
                verdicts.append(Verdict(level, text, remedy, (role,)))
        evaluations += _evaluations(cfg.get(f'{role}_evaluator'), role)
    return uses, evaluations, verdicts


class _NotUsedError(Exception):
    """Holds level, text and remedy of a data set that is not judged."""


def inner_of(config: dict) -> list | None:
    """Return what a wrapper such as RepeatDataset holds; None for others."""
    inner = config.get('datasets') or config.get('dataset')
    return [inner] if isinstance(inner, dict) else inner


def _data_sets(config: Any) -> Iterator[dict]:
    if not isinstance(config, dict):
        return
    inner = inner_of(config)
    if inner is None:
        yield config
    for part in inner or ():
        yield from _data_sets(part)


def _use(config: dict, role: str, scope: str) -> Use:
    root, prefix = config.get('data_root'), config.get('data_prefix')
    root, prefix = root or '', prefix or {}
    path = os.path.join(root, config.get('ann_file') or '')
    if not _is_local(path, config.get('backend_args')):
        raise _not_checked(config, 'it is not a file on a disk.')
    own_classes, filters = _as_coco(config, scope)
    classes = (config.get('metainfo') or {}).get('classes') or own_classes
    # MMEngine takes a text for a file of names, if there is one.
    if isinstance(classes, str) and Path(classes).is_file():
        classes = Path(classes).read_text('utf-8').splitlines()
    if not classes or isinstance(classes, str):
        raise _NotUsedError(
            'broken',
            f'{path}: metainfo.classes={classes!r} are no names of classes.',
            "Set metainfo=dict(classes=('...',)), with the comma, or a file "
            'of names.',
        )
    if 'img' not in prefix:
        raise _NotUsedError(
            'broken',
            f'{path}: data_prefix has no img.',
            "Set data_prefix=dict(img='...'): the folder of the images.",
        )
    pipeline = config.get('pipeline') or ()
    color_type = None
    for step in pipeline:
        if (
            type_name(step.get('type')) == 'LoadImageFromFile'
            and step.get('imdecode_backend', 'cv2') == 'cv2'
        ):
            color_type = step.get('color_type', 'color')
    rule = {} if config.get('test_mode') else config.get('filter_cfg') or {}
    return Use(
        role,
        path,
        tuple(classes),
        any(_options(pipeline, 'with_mask')),
        os.path.join(root, prefix['img']),
        color_type,
        filters,
        dict(rule),
        config.get('indices'),
        config,
    )


def _not_checked(config: dict, reason: str) -> _NotUsedError:
    text = (
        f'{config.get("type")} with ann_file={config.get("ann_file")!r} is '
        f'not checked: {reason}'
    )
    remedy = "Local files in COCO's format are: look through this yourself."
    return _NotUsedError('notable', text, remedy)


def _is_local(path: str, backend_args: dict | None) -> bool:
    backend = (backend_args or {}).get('backend', 'local')
    return backend in ('local', 'disk') and '://' not in path


def _as_coco(config: dict, scope: str) -> tuple[Any, bool]:
    """Return a type's own classes, and whether it filters as CocoDataset."""
    cls: Any = config.get('type')
    try:
        from mmdet.datasets import CocoDataset
        from mmengine.registry import DATASETS

        if isinstance(cls, str):
            with DATASETS.switch_scope_and_registry(scope) as registry:
                cls = registry.get(cls)
    except Exception as error:
        # mmdet is not to be imported: broken operators, another torch.
        if type_name(cls) == 'CocoDataset':
            return None, True
        text = ' '.join(str(error).split())
        raise _not_checked(config, f'{type(error).__name__}: {text}') from None
    if cls is None:
        raise _NotUsedError(
            'broken',
            f'there is no data set {config["type"]!r} in the registry of '
            f'{scope!r}.',
            'Mend type, or import what registers it by custom_imports.',
        )
    is_coco = isinstance(cls, type) and issubclass(cls, CocoDataset)
    if not is_coco or any(
        getattr(cls, method) is not getattr(CocoDataset, method)
        for method in ('load_data_list', 'parse_data_info', 'COCOAPI')
    ):
        reason = "it does not read its file as mmdet's CocoDataset."
        raise _not_checked(config, reason)
    classes = cls.METAINFO.get('classes')
    return classes, cls.filter_data is CocoDataset.filter_data


def type_name(type_: Any) -> str:
    """Return the name of a config's ``type``, a class or a text."""
    name = getattr(type_, '__name__', None) or str(type_)
    return name.rpartition('.')[-1]


def _options(node: Any, key: str) -> Iterator[Any]:
    """Yield what stands under a key, anywhere in a pipeline."""
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        node = node.values()
    elif not isinstance(node, list | tuple):
        return
    for value in node:
        yield from _options(value, key)


def _evaluations(evaluator: Any, role: str) -> Iterator[Evaluation]:
    if isinstance(evaluator, dict):
        evaluator = evaluator.get('metrics', evaluator)
    metrics = evaluator if isinstance(evaluator, list | tuple) else [evaluator]
    for metric in metrics:
        config = metric if isinstance(metric, dict) else {}
        path = config.get('ann_file')
        if (
            path
            and type_name(config.get('type')) == 'CocoMetric'
            and _is_local(path, config.get('backend_args'))
        ):
            masks = 'segm' in config.get('metric', 'bbox')
            format_only = config.get('format_only', False)
            yield Evaluation(role, path, masks, format_only)
