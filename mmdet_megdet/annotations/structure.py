# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The fields that mmdet and pycocotools take for granted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from .masks import form_of
from .table import Table, listed
from .verdict import Verdict

CHECK = 'fields'


class _Field(NamedTuple):
    good: Callable[[Any], bool]
    what: str
    needed: bool = True


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or _is_number(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(map(_is_number, value))
    )


def _is_flag(value: Any) -> bool:
    # mmdet takes '0' for true.
    return value is None or _is_number(value)


_ID = _Field(_is_id, 'a number or a text')
_NUMBER = _Field(_is_number, 'a finite number')
_TEXT = _Field(_is_text, 'a text')
_FLAG = _Field(_is_flag, '0 or 1', needed=False)
_FIELDS = dict(
    images=dict(id=_ID, file_name=_TEXT, width=_NUMBER, height=_NUMBER),
    annotations=dict(
        id=_ID,
        image_id=_ID,
        category_id=_ID,
        bbox=_Field(_is_box, 'four finite numbers [x, y, width, height]'),
        area=_NUMBER,
        iscrowd=_FLAG,
        ignore=_FLAG,
    ),
    categories=dict(id=_ID, name=_TEXT),
)


def find_malformed(content: Any, path: str) -> Iterator[Verdict]:
    """Yield what mmdet or pycocotools would stumble over.

    Args:
        content (Any): What the file holds.
        path (str): The file, for the texts.
    """
    if not isinstance(content, dict):
        yield _malformed(
            f'{path} holds a {type(content).__name__}, no object with images, '
            'annotations and categories.',
            "It is not in COCO's format for detection: convert it.",
        )
        return
    for part, fields in _FIELDS.items():
        # pycocotools asks for the categories alone.
        entries = content.get(part, None if part == 'categories' else [])
        if not isinstance(entries, list):
            yield _malformed(
                f'{path} has no list {part!r}.',
                "It is not in COCO's format for detection: convert it.",
            )
            continue
        yield from _find_bad_entries(path, part, entries, fields)


def _find_bad_entries(
    path: str, part: str, entries: list, fields: dict[str, _Field]
) -> Iterator[Verdict]:
    strange = [
        i for i, entry in enumerate(entries) if not isinstance(entry, dict)
    ]
    if strange:
        yield _malformed(
            f'{path}: {len(strange)} of {part} are no objects: the entries '
            f'{listed(strange)} of the list.',
            'Remove them, or look at what wrote the file.',
        )
        return
    for name, field in fields.items():
        absent = [i for i, e in enumerate(entries) if name not in e]
        if absent and field.needed:
            yield _malformed(
                f'{path}: {len(absent)} of {part} have no {name}: '
                f'{_named(entries, absent)}.',
                f'Write {name} ({field.what}) into these entries.',
            )
        wrong = [
            i
            for i, entry in enumerate(entries)
            if name in entry and not field.good(entry[name])
        ]
        if wrong:
            shown = repr(entries[wrong[0]][name])
            shown = shown if len(shown) < 60 else f'{shown[:57]}...'
            yield _malformed(
                f'{path}: {len(wrong)} of {part} have a {name} that is not '
                f'{field.what}: {_named(entries, wrong)}; the first is '
                f'{shown}.',
                f'Write {name} as {field.what}.',
            )


def _named(entries: list[dict], places: list[int]) -> str:
    return listed(
        f'id {entries[i]["id"]}' if 'id' in entries[i] else f'entry {i}'
        for i in places
    )


def _malformed(text: str, remedy: str) -> Verdict:
    return Verdict('broken', CHECK, text, remedy)


def table_of(content: dict, with_masks: bool) -> Table:
    """Return the content of a file in which nothing is malformed.

    Args:
        content (dict): As ``json.load`` gives it.
        with_masks (bool): Whether to look at the segmentations.
    """
    images = content.get('images', [])
    annotations = content.get('annotations', [])
    categories = content['categories']
    sizes = {i['id']: (i['width'], i['height']) for i in images}
    forms = [
        form_of(a.get('segmentation'), *sizes.get(a['image_id'], (0, 0)))
        for a in annotations
        if with_masks
    ]
    return Table(
        [i['id'] for i in images],
        [i['file_name'] for i in images],
        np.array([(i['width'], i['height']) for i in images], float).reshape(
            -1, 2
        ),
        [c['id'] for c in categories],
        [c['name'] for c in categories],
        [a['id'] for a in annotations],
        [a['image_id'] for a in annotations],
        [a['category_id'] for a in annotations],
        np.array([a['bbox'] for a in annotations], float).reshape(-1, 4),
        np.array([a['area'] for a in annotations], float),
        np.array([_crowd(a.get('iscrowd')) for a in annotations], int),
        np.array([bool(a.get('ignore')) for a in annotations], bool),
        np.array(forms, int),
    )


def _crowd(value: Any) -> int:
    return -1 if value is None else int(bool(value))
