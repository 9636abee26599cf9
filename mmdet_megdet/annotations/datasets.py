# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which annotation files a config reads, and what for."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .reading import WHERE, unreadable
from .verdict import Verdict


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


class _NotUsed(Exception):
    """A data set whose file is not read: level, text and remedy."""


def configured(
    cfg: Any, roles: Sequence[str]
) -> tuple[list[Use], list[Evaluation], list[Verdict]]:
    """Return what a config reads for these roles.

    Args:
        cfg (Config or dict): The config.
        roles (Sequence[str]): Of 'train', 'val' and 'test'.

    Returns:
        tuple: The data sets, the evaluations, and a verdict on each data set
        whose file cannot be checked.
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
            except _NotUsed as found:
                level, text, remedy = found.args
                verdict = Verdict(level, 'data set', text, remedy, (role,))
                verdicts.append(verdict)
        evaluations += _evaluations(cfg.get(f'{role}_evaluator'), role)
    return uses, evaluations, verdicts


def _data_sets(config: Any) -> Iterator[dict]:
    """Yield the data sets inside wrappers such as RepeatDataset."""
    if not isinstance(config, dict):
        return
    inner = config.get('dataset') or config.get('datasets')
    if inner is None:
        yield config
    for part in inner if isinstance(inner, list | tuple) else [inner]:
        yield from _data_sets(part)


def _use(config: dict, role: str, scope: str) -> Use:
    kind = _kind_of(config.get('type'), scope)
    path = os.path.join(
        config.get('data_root') or '', config.get('ann_file') or ''
    )
    if not _is_local(path, config.get('backend_args')):
        raise _not_checked(config, 'it is not a file on a disk.')
    if not kind.is_coco:
        reason = unreadable(path) if path.endswith('.json') else None
        if reason is not None:
            raise _NotUsed('broken', reason, WHERE)
        reason = "it does not read its file as mmdet's CocoDataset."
        raise _not_checked(config, kind.unknown or reason)
    classes = _classes(config, kind)
    if classes is None:
        raise _NotUsed(
            'broken',
            f'{path}: {kind.name} has no classes of its own, and the config '
            'none for it.',
            'Set metainfo=dict(classes=(...)).',
        )
    prefix = config.get('data_prefix') or {}
    if 'img' not in prefix:
        raise _NotUsed(
            'broken',
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


def _not_checked(config: dict, reason: str) -> _NotUsed:
    return _NotUsed(
        'notable',
        f'{config.get("type")} with ann_file={config.get("ann_file")!r} is '
        f'not checked: {reason}',
        "Look through this data set yourself: local files in COCO's format "
        'are checked.',
    )


def _is_local(path: str, backend_args: dict | None) -> bool:
    backend = (backend_args or {}).get('backend', 'local')
    return backend in ('local', 'disk') and '://' not in path


class _Kind(NamedTuple):
    """What is known of a data set's type."""

    name: str
    is_coco: bool = False  # whether it reads its file as CocoDataset does
    filters: bool = False  # whether it filters as CocoDataset does
    classes: tuple[str, ...] | None = None  # its own
    unknown: str = ''  # why nothing is known of it


def _kind_of(type_: Any, scope: str) -> _Kind:
    name = type_name(type_)
    try:
        cls = _registered(type_, scope) if isinstance(type_, str) else type_
        from mmdet.datasets import CocoDataset
    except _NotUsed:
        raise
    except Exception as error:
        # mmdet is not to be imported: broken operators, another torch.
        if name == 'CocoDataset':
            return _Kind(name, True, True, _coco_classes())
        text = ' '.join(str(error).split())
        return _Kind(name, unknown=f'{type(error).__name__}: {text}')
    classes = getattr(cls, 'METAINFO', {}).get('classes')
    if classes is not None:
        classes = (classes,) if isinstance(classes, str) else tuple(classes)
    is_coco = isinstance(cls, type) and issubclass(cls, CocoDataset)
    is_coco = is_coco and all(
        getattr(cls, part) is getattr(CocoDataset, part)
        for part in ('load_data_list', 'parse_data_info', 'COCOAPI')
    )
    filters = getattr(cls, 'filter_data', None) is CocoDataset.filter_data
    return _Kind(name, is_coco, is_coco and filters, classes)


def type_name(type_: Any) -> str:
    """Return the name of a config's ``type``, a class or a text."""
    name = getattr(type_, '__name__', None) or str(type_)
    return name.rpartition('.')[-1]


def _registered(name: str, scope: str) -> type:
    from mmengine.registry import DATASETS

    with DATASETS.switch_scope_and_registry(scope) as registry:
        # Without mmdet the root registry comes instead.
        if scope == 'mmdet' and registry.scope != scope:
            raise ImportError('mmdet cannot be imported')
        found = registry.get(name)
    if found is None:
        raise _NotUsed(
            'broken',
            f'there is no data set {name!r} in the registry of {scope!r}.',
            'Mend type, or import what registers it by custom_imports.',
        )
    return found


def _coco_classes() -> tuple[str, ...] | None:
    """Read CocoDataset's classes in mmdet's source, without importing it."""
    spec = importlib.util.find_spec('mmdet')
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    module = ast.parse((folder / 'datasets' / 'coco.py').read_text('utf-8'))
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == 'METAINFO'
        ):
            return tuple(ast.literal_eval(node.value)['classes'])
    return None


def _classes(config: dict, kind: _Kind) -> tuple[str, ...] | str | None:
    classes = (config.get('metainfo') or {}).get('classes')
    if classes is None:
        return kind.classes
    if not isinstance(classes, str):
        return tuple(classes)
    if '://' in classes:
        raise _not_checked(config, f'its classes are in {classes}.')
    # MMEngine takes the text for a file of names, if there is one.
    if Path(classes).is_file():
        return tuple(Path(classes).read_text('utf-8').splitlines())
    return classes


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


def _reader(pipeline: Sequence[dict]) -> Reader | None:
    for step in pipeline:
        kind = step.get('type') if isinstance(step, dict) else step
        if type_name(kind) == 'LoadImageFromFile':
            return Reader(
                step.get('color_type', 'color'),
                step.get('imdecode_backend', 'cv2'),
            )
    return None


def _evaluations(evaluator: Any, role: str) -> Iterator[Evaluation]:
    if isinstance(evaluator, dict) and 'metrics' in evaluator:
        evaluator = evaluator['metrics']
    metrics = evaluator if isinstance(evaluator, list | tuple) else [evaluator]
    for metric in metrics:
        if not isinstance(metric, dict):
            continue
        path = metric.get('ann_file')
        if (
            type_name(metric.get('type')) == 'CocoMetric'
            and path
            and _is_local(path, metric.get('backend_args'))
        ):
            kinds = metric.get('metric', 'bbox')
            yield Evaluation(
                role,
                path,
                'segm' in (kinds if isinstance(kinds, list) else [kinds]),
                metric.get('sort_categories', False),
                metric.get('format_only', False),
            )
