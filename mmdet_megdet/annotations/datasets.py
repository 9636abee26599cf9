# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which annotation files a config reads, and what for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .kinds import Kind, kind_of
from .verdict import Verdict

ROLES = ('train', 'val', 'test')
CHECK = 'data set'


class Reader(NamedTuple):
    """How a pipeline decodes images.

    Attributes:
        color_type (str): LoadImageFromFile's option.
        backend (str, optional): Its ``imdecode_backend``.
    """

    color_type: str = 'color'
    backend: str | None = 'cv2'


class Use(NamedTuple):
    """A data set in COCO's format, as a config uses it.

    Attributes:
        role (str): 'train', 'val' or 'test'.
        path (str): Its annotation file.
        classes (tuple[str] or str): ``metainfo['classes']``. (A text where
            the config has one: mmdet then looks for names within it.)
        with_masks (bool): Whether its pipeline loads masks.
        folder (str): Of the images.
        reader (Reader, optional): How its pipeline decodes them; None where
            that is not known.
        config (dict): Its part of the config.
        filters (bool): Whether it filters as mmdet's CocoDataset does.
    """

    role: str
    path: str
    classes: tuple[str, ...] | str
    with_masks: bool = False
    folder: str = ''
    reader: Reader | None = Reader()
    config: dict = {}
    filters: bool = True


class Evaluation(NamedTuple):
    """An annotation file by which CocoMetric evaluates.

    Attributes:
        role (str): 'val' or 'test'.
        path (str): The annotation file.
        with_masks (bool): Whether masks are evaluated.
        sort_categories (bool): CocoMetric's option.
        format_only (bool): Whether predictions are only written.
    """

    role: str
    path: str
    with_masks: bool = False
    sort_categories: bool = False
    format_only: bool = False


class NotJudgedError(Exception):
    """A data set of which nothing is said, for this reason."""


def configured(
    cfg: Any, roles: Sequence[str] = ROLES
) -> tuple[list[Use], list[Evaluation], list[Verdict]]:
    """Return what a config reads for these roles.

    Args:
        cfg (Config or dict): The config.
        roles (Sequence[str]): Of 'train', 'val' and 'test'.

    Returns:
        tuple: The data sets, the evaluations, and what is to be said of data
        sets that are neither.
    """
    uses, evaluations, verdicts = [], [], []
    scope = cfg.get('default_scope') or 'mmengine'
    for role in roles:
        loader = cfg.get(f'{role}_dataloader') or {}
        for config in leaves(loader.get('dataset')):
            try:
                found = _describe(config, role, scope)
            except NotJudgedError as reason:
                found = Verdict(
                    'notable',
                    CHECK,
                    f'{config.get("type")} with ann_file='
                    f'{config.get("ann_file")!r} is not checked: {reason}',
                    'Look through this data set yourself: local files in '
                    "COCO's format are checked.",
                    (role,),
                )
            (verdicts if isinstance(found, Verdict) else uses).append(found)
        evaluations += _evaluations(cfg.get(f'{role}_evaluator'), role)
    return uses, evaluations, verdicts


def leaves(config: Any) -> Iterator[dict]:
    """Yield the data sets inside wrappers such as RepeatDataset."""
    if not isinstance(config, dict):
        return
    inner = config.get('dataset') or config.get('datasets')
    if inner is None:
        yield config
    for part in inner if isinstance(inner, list | tuple) else [inner]:
        yield from leaves(part)


def _describe(config: dict, role: str, scope: str) -> Use | Verdict:
    try:
        kind = kind_of(config.get('type'), scope)
    except LookupError:
        return _broken(
            role,
            f'there is no data set {config.get("type")!r} in the registry of '
            f'{scope!r}.',
            'Mend type, or import what registers it by custom_imports.',
        )
    if not kind.is_coco:
        raise NotJudgedError(
            kind.unknown or "it does not read its file as mmdet's CocoDataset"
        )
    path = _local_path(config)
    classes = _classes(config, kind)
    if classes is None:
        return _broken(
            role,
            f'{path}: {kind.name} has no classes of its own, and the config '
            'none for it.',
            'Set metainfo=dict(classes=(...)).',
        )
    prefix = config.get('data_prefix') or {}
    if 'img' not in prefix:
        return _broken(
            role,
            f'{path}: data_prefix of {kind.name} has no img.',
            "Set data_prefix=dict(img='...'): the folder of the images.",
        )
    pipeline = config.get('pipeline') or ()
    return Use(
        role,
        path,
        classes,
        any(_options(pipeline, 'with_mask')),
        os.path.join(config.get('data_root') or '', prefix['img']),
        _reader(pipeline),
        config,
        kind.filters,
    )


def _broken(role: str, text: str, remedy: str) -> Verdict:
    return Verdict('broken', CHECK, text, remedy, (role,))


def _local_path(config: dict) -> str:
    path = os.path.join(
        config.get('data_root') or '', config.get('ann_file') or ''
    )
    if not _is_local(path, config.get('backend_args')):
        raise NotJudgedError('it is not a file on a disk.')
    return path


def _is_local(path: str, backend_args: dict | None) -> bool:
    backend = (backend_args or {}).get('backend', 'local')
    return backend in ('local', 'disk') and '://' not in path


def _classes(config: dict, kind: Kind) -> tuple[str, ...] | str | None:
    classes = (config.get('metainfo') or {}).get('classes')
    if classes is None:
        return kind.classes
    if not isinstance(classes, str):
        return tuple(classes)
    if '://' in classes:
        raise NotJudgedError(f'its classes are in {classes}.')
    # MMEngine takes the text for a file of names, if there is one.
    if Path(classes).is_file():
        return tuple(Path(classes).read_text('utf-8').splitlines())
    return classes


def _options(node: Any, key: str) -> Iterator[Any]:
    """Yield what stands under a key, anywhere in a pipeline."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from _options(value, key)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _options(value, key)


def _reader(pipeline: Sequence[dict]) -> Reader | None:
    for step in pipeline:
        if _type_name(step) == 'LoadImageFromFile':
            return Reader(
                step.get('color_type', 'color'),
                step.get('imdecode_backend', 'cv2'),
            )
    return None


def _type_name(config: Any) -> str:
    kind = config.get('type') if isinstance(config, dict) else config
    name = getattr(kind, '__name__', None) or str(kind)
    return name.rpartition('.')[-1]


def _evaluations(evaluator: Any, role: str) -> Iterator[Evaluation]:
    if isinstance(evaluator, dict) and 'metrics' in evaluator:
        evaluator = evaluator['metrics']
    metrics = evaluator if isinstance(evaluator, list | tuple) else [evaluator]
    for metric in metrics:
        if not isinstance(metric, dict) or _type_name(metric) != 'CocoMetric':
            continue
        path = metric.get('ann_file')
        if path and _is_local(path, metric.get('backend_args')):
            kinds = metric.get('metric', 'bbox')
            yield Evaluation(
                role,
                path,
                'segm' in (kinds if isinstance(kinds, list) else [kinds]),
                metric.get('sort_categories', False),
                metric.get('format_only', False),
            )
