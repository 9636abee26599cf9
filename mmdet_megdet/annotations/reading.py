# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading an annotation file: quickly, and as pycocotools would.

A typed decoder makes only the fields that mmdet uses, in a fraction of the
time and memory. What it does not take is read by ``json.load``, as pycocotools
does: what that accepts is what trains.
"""

from __future__ import annotations

import codecs
import json
import mmap
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ..text import some
from .segmentation import Form, form_of, forms_of_json
from .table import Table
from .verdict import Verdict

_PLACE = (
    "Set the data set's place: data_root, ann_file, or the environment "
    'variable that the config names ({{$NAME:default}} in it).'
)
_FORMAT = "It is not in COCO's format for detection: convert it."
_PORTION = 1 << 10  # annotations: few enough for the cache
_BYTES = 1 << 20

_Columns = tuple[np.ndarray, ...]  # as in Table, of the annotations
_Id = int | float | str
_Flag = bool | int | float
# Neither NaN nor infinite.
_Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


class _Image(msgspec.Struct, gc=False):
    id: _Id
    file_name: str
    width: _Number
    height: _Number


class _Category(msgspec.Struct, gc=False):
    id: _Id
    name: str


class _Annotation(msgspec.Struct, gc=False):
    id: int | float  # evaluation computes with it
    image_id: _Id
    category_id: _Id
    bbox: tuple[_Number, _Number, _Number, _Number]
    area: _Number
    iscrowd: _Flag = -1
    ignore: _Flag = False


class _Masked(_Annotation, gc=False):
    # As it stands in the file; few have to be made numbers of.
    segmentation: msgspec.Raw = msgspec.Raw(b'null')


class _Content(msgspec.Struct, gc=False):
    categories: list[_Category]
    images: list[_Image] = []
    # Decoded in portions: its numbers in Python are as large as the file.
    annotations: list[msgspec.Raw] = []


# What mmdet and pycocotools take for granted.
_KINDS = dict(images=_Image, annotations=_Annotation, categories=_Category)


def unreadable(path: str | Path) -> Verdict | None:
    """Return why a file cannot be one of annotations, by its ends alone."""
    path = Path(path)
    remedy = 'Copy or download it again.'
    if not path.is_file():
        text, remedy = f'there is no annotation file {path}.', _PLACE
    elif (size := path.stat().st_size) == 0:
        text = f'the annotation file {path} is empty (0 bytes).'
    else:
        with path.open('rb') as file:
            file.seek(max(0, size - 64))
            end = file.read().rstrip()
        if end.endswith((b'}', b']', b'\0')):  # perhaps UTF-16
            return None
        text = f'the annotation file {path} is cut off, after {size} bytes.'
    return Verdict('broken', text, remedy)


def read_annotations(path: str, with_masks: bool) -> Table | list[Verdict]:
    """Return what a file holds, or why mmdet cannot use it."""
    found = unreadable(path)
    if found is not None:
        return [found]
    try:
        return _read_typed(path, with_masks)
    except (msgspec.MsgspecError, ValueError):
        return _read_as_pycocotools(path, with_masks)


def _read_typed(path: str, with_masks: bool) -> Table:
    with open(path, 'rb') as file:
        # Closed when the last view of it is gone.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # Also what the decoder skips is UTF-8.
    decoder = codecs.getincrementaldecoder('utf-8')()
    for start in range(0, len(data), _BYTES):
        decoder.decode(data[start : start + _BYTES])
    content = msgspec.json.decode(data, type=_Content)
    size_of = {i.id: (i.width, i.height) for i in content.images}
    kind = _Masked if with_masks else _Annotation
    decode = msgspec.json.Decoder(kind).decode
    columns = [_columns([], [])]
    for start in range(0, len(content.annotations), _PORTION):
        raw = content.annotations[start : start + _PORTION]
        annotations: list[Any] = list(map(decode, raw))
        forms = forms_of_json(annotations, size_of) if with_masks else []
        columns.append(_columns(annotations, forms))
    return _table(path, content.images, content.categories, columns)


def _read_as_pycocotools(path: str, with_masks: bool) -> Table | list[Verdict]:
    try:
        with open(path) as file:
            content = json.load(file)
    except Exception as error:
        reason = ' '.join(str(error).split())
        text = f'{path} cannot be read: {type(error).__name__}: {reason}.'
        return [Verdict('broken', text, 'Write it anew, as JSON in UTF-8.')]
    if not isinstance(content, dict):
        text = f'{path} holds a {type(content).__name__}, no object.'
        return [Verdict('broken', text, _FORMAT)]
    images, annotations, categories = (
        _entries_of(content, part, path) for part in _KINDS
    )
    entries = chain(images, annotations, categories)
    faults = [entry for entry in entries if isinstance(entry, Verdict)]
    if faults:
        return faults
    size_of = {i.id: (i.width, i.height) for i in images}
    forms = [
        form_of(entry.get('segmentation'), *size_of.get(a.image_id, (0, 0)))
        for a, entry in zip(annotations, content['annotations'], strict=True)
        if with_masks
    ]
    return _table(path, images, categories, [_columns(annotations, forms)])


def _entries_of(content: dict, part: str, path: str) -> list[Any]:
    """Return a part's entries; a verdict in the place of those at fault."""
    if part != 'categories':  # for which alone pycocotools asks
        content.setdefault(part, [])
    if not isinstance(content.get(part), list):
        text = f'{path} has no list {part!r}.'
        return [Verdict('broken', text, _FORMAT)]
    kind, found = _KINDS[part], []
    reasons: dict[str, list[str]] = {}
    for i, entry in enumerate(content[part]):
        try:
            found.append(msgspec.convert(entry, kind))
        except msgspec.ValidationError as error:
            known = isinstance(entry, dict) and 'id' in entry
            name = f'id {entry["id"]}' if known else f'entry {i}'
            reasons.setdefault(str(error), []).append(name)
    needed = ', '.join(kind.__struct_fields__)
    return found + [
        Verdict(
            'broken',
            f'{path}: {len(names)} of {part} cannot be used: {reason}: '
            f'{some(names, 5)}.',
            f'Mend them; mmdet and pycocotools know {needed} (bbox is '
            '[x, y, width, height]), and finite numbers.',
        )
        for reason, names in reasons.items()
    ]


def _columns(annotations: list, forms: list[Form]) -> _Columns:
    boxes = chain.from_iterable(map(attrgetter('bbox'), annotations))
    return (
        _column(annotations, 'id', object),
        _column(annotations, 'image_id', object),
        _column(annotations, 'category_id', object),
        np.fromiter(boxes, float, 4 * len(annotations)).reshape(-1, 4),
        _column(annotations, 'area', float),
        _column(annotations, 'iscrowd', float),
        _column(annotations, 'ignore', bool),
        np.frombuffer(bytes(forms), np.int8),
    )


def _table(
    path: str, images: list, categories: list, columns: list[_Columns]
) -> Table:
    """Join the columns of all annotations, in portions."""
    sizes = [(i.width, i.height) for i in images]
    return Table(
        path,
        _column(images, 'id', object),
        [i.file_name for i in images],
        np.array(sizes, float).reshape(-1, 2),
        _column(categories, 'id', object),
        [c.name for c in categories],
        *map(np.concatenate, zip(*columns, strict=True)),
    )


def _column(entries: list, name: str, dtype: type) -> np.ndarray:
    return np.fromiter(map(attrgetter(name), entries), dtype, len(entries))
