# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The fields that mmdet and pycocotools take for granted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, NamedTuple

from ..text import some
from .verdict import Verdict


class _Field(NamedTuple):
    is_good: Callable[[Any], bool]
    what: str
    needed: bool = True


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(map(_is_number, value))
    )


_ID = _Field(lambda v: isinstance(v, str) or _is_number(v), 'a number or text')
_NUMBER = _Field(_is_number, 'a finite number')
_TEXT = _Field(lambda value: isinstance(value, str), 'a text')
# mmdet takes '0' for true.
_FLAG = _Field(lambda v: v is None or _is_number(v), '0 or 1', needed=False)
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
    """Yield what mmdet or pycocotools would stumble over."""
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
        if isinstance(entries, list):
            yield from _find_bad_entries(path, part, entries, fields)
        else:
            yield _malformed(
                f'{path} has no list {part!r}.',
                "It is not in COCO's format for detection: convert it.",
            )


def _find_bad_entries(
    path: str, part: str, entries: list, fields: dict[str, _Field]
) -> Iterator[Verdict]:
    strange = [i for i, e in enumerate(entries) if not isinstance(e, dict)]
    if strange:
        yield _malformed(
            f'{path}: {len(strange)} of {part} are no objects: the entries '
            f'{some(strange, 5)} of the list.',
            'Remove them, or look at what wrote the file.',
        )
        return
    for name, (is_good, what, needed) in fields.items():
        absent = [i for i, e in enumerate(entries) if name not in e]
        if absent and needed:
            yield _malformed(
                f'{path}: {len(absent)} of {part} have no {name}: '
                f'{_named(entries, absent)}.',
                f'Write {name} ({what}) into these entries.',
            )
        wrong = [
            i
            for i, entry in enumerate(entries)
            if name in entry and not is_good(entry[name])
        ]
        if wrong:
            shown = repr(entries[wrong[0]][name])
            shown = shown if len(shown) < 60 else f'{shown[:57]}...'
            yield _malformed(
                f'{path}: {len(wrong)} of {part} have a {name} that is not '
                f'{what}: {_named(entries, wrong)}; the first is {shown}.',
                f'Write {name} as {what}.',
            )


def _named(entries: list[dict], places: list[int]) -> str:
    named = (
        f'id {entries[i]["id"]}' if 'id' in entries[i] else f'entry {i}'
        for i in places
    )
    return some(named, 5)


def _malformed(text: str, remedy: str) -> Verdict:
    return Verdict('broken', 'fields', text, remedy)
