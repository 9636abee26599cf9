# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which class a data set of a config is, and which classes it knows."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """What is known of a data set's type.

    Attributes:
        name (str): As the config calls it.
        is_coco (bool): Whether it reads its file as mmdet's CocoDataset does.
        filters (bool): Whether it filters as mmdet's CocoDataset does.
        classes (tuple[str], optional): Its own, where the config names none.
        unknown (str): Why nothing is known of it; empty if something is.
    """

    name: str
    is_coco: bool = False
    filters: bool = False
    classes: tuple[str, ...] | None = None
    unknown: str = ''


def kind_of(type_: Any, scope: str | None) -> Kind:
    """Look up a data set's type.

    Args:
        type_ (str or type): As in the config.
        scope (str, optional): The config's ``default_scope``.

    Raises:
        LookupError: If the registry has no such type.
    """
    name = getattr(type_, '__name__', None) or str(type_)
    try:
        cls = _registered(type_, scope) if isinstance(type_, str) else type_
        from mmdet.datasets import CocoDataset
    except LookupError:
        raise
    except Exception as error:
        # mmdet is not to be imported: broken operators, another torch.
        if name.rpartition('.')[-1] == 'CocoDataset':
            return Kind(name, True, True, _coco_classes())
        text = ' '.join(str(error).split())
        return Kind(name, unknown=f'{type(error).__name__}: {text}')
    classes = getattr(cls, 'METAINFO', {}).get('classes')
    if classes is not None:
        classes = (classes,) if isinstance(classes, str) else tuple(classes)
    is_coco = isinstance(cls, type) and issubclass(cls, CocoDataset)
    is_coco = is_coco and all(
        getattr(cls, part) is getattr(CocoDataset, part)
        for part in ('load_data_list', 'parse_data_info', 'COCOAPI')
    )
    filters = is_coco and cls.filter_data is CocoDataset.filter_data
    return Kind(name, is_coco, filters, classes)


def _registered(name: str, scope: str | None) -> type:
    from mmengine.registry import DATASETS

    with DATASETS.switch_scope_and_registry(scope) as registry:
        # Without mmdet the root registry comes instead.
        if scope == 'mmdet' and registry.scope != scope:
            raise ImportError('mmdet cannot be imported')
        found = registry.get(name)
    if found is None:
        raise LookupError(name)
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
