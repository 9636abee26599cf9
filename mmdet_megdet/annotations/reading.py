# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading an annotation file: quickly, and as pycocotools would.

pycocotools opens the file as text and hands it to ``json.load``: what that
accepts is what trains. A typed decoder reads a file of COCO's size in a
fraction of the time and memory, since it makes only the fields that mmdet
uses. Whatever it does not take is read in pycocotools' way, which decides.
"""

from __future__ import annotations

import codecs
import json
import locale
import mmap
import re
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .fields import find_malformed
from .segmentation import form_of, form_of_polygons
from .table import Table
from .verdict import Verdict

WHERE = (
    "Set the data set's place: data_root, ann_file, or the environment "
    'variable that the config names ({{$NAME:default}} in it).'
)
_PORTION = 1 << 22
_BETWEEN = re.compile(rb'}\s*,\s*{')
_MOST_TRIES = 100


class _Image(msgspec.Struct, gc=False):
    id: int
    file_name: str
    width: float
    height: float


class _Category(msgspec.Struct, gc=False):
    id: int
    name: str


class _Annotation(msgspec.Struct, gc=False):
    id: int
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    area: float
    iscrowd: int = -1
    ignore: int = 0


class _Masked(_Annotation, gc=False):
    # As it stands in the file; few have to be made numbers of.
    segmentation: msgspec.Raw = msgspec.Raw(b'null')


class _Content(msgspec.Struct, gc=False):
    categories: list[_Category]
    images: list[_Image] = []
    # Decoded in portions: its numbers in Python are as large as the file.
    annotations: msgspec.Raw = msgspec.Raw(b'[]')


def unreadable(path: str | Path) -> str | None:
    """Return why a file cannot be one of annotations, by its ends alone.

    Args:
        path (str or Path): A JSON file.

    Returns:
        str, optional: The reason; None if it may be one.
    """
    path = Path(path)
    if not path.is_file():
        return f'there is no annotation file {path}.'
    size = path.stat().st_size
    if size == 0:
        return f'the annotation file {path} is empty (0 bytes).'
    with path.open('rb') as file:
        encoding = json.detect_encoding(file.read(4))
        if encoding != 'utf-8':
            return (
                f'the annotation file {path} is written in {encoding}, which '
                'pycocotools does not read: save it as UTF-8 without a byte '
                'order mark.'
            )
        file.seek(max(0, size - 64))
        if not file.read().rstrip().endswith((b'}', b']')):
            return (
                f'the annotation file {path} is cut off, after {size} bytes: '
                'copy or download it again.'
            )
    return None


def read_annotations(path: str, with_masks: bool) -> Table | list[Verdict]:
    """Return what a file holds, or why mmdet cannot use it."""
    reason = unreadable(path)
    if reason is not None:
        remedy = '' if Path(path).is_file() else WHERE
        return [Verdict('broken', 'annotations', reason, remedy)]
    try:
        return _read_typed(path, with_masks)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        pass
    try:
        with open(path) as file:
            content = json.load(file)
    except Exception as error:
        text = ' '.join(str(error).split())
        return [
            Verdict(
                'broken',
                'annotations',
                f'{path} cannot be read: {type(error).__name__}: {text}.',
                'It is no JSON, or another program saved it in a way of its '
                'own: write it anew as UTF-8.',
            )
        ]
    malformed = list(find_malformed(content, path))
    return malformed or _table_of(content, path, with_masks)


def _read_typed(path: str, with_masks: bool) -> Table:
    encoding = locale.getpreferredencoding(False)
    if codecs.lookup(encoding).name != 'utf-8':
        raise ValueError(f'open() reads {encoding} here')
    with open(path, 'rb') as file:
        # Closed when the last view of it is gone.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _check_encoding(data)
    content = msgspec.json.decode(data, type=_Content)
    size_of = {i.id: (i.width, i.height) for i in content.images}
    decoder: msgspec.json.Decoder = msgspec.json.Decoder(
        list[_Masked] if with_masks else list[_Annotation]
    )
    columns = [
        _columns(part, size_of if with_masks else None)
        for part in _portions(memoryview(content.annotations), decoder)
    ] or [_columns([], None)]
    sizes = [(i.width, i.height) for i in content.images]
    return Table(
        path,
        _column(content.images, 'id', np.int64),
        [i.file_name for i in content.images],
        np.array(sizes, float).reshape(-1, 2),
        _column(content.categories, 'id', np.int64),
        [c.name for c in content.categories],
        *map(np.concatenate, zip(*columns, strict=True)),
    )


def _check_encoding(data: mmap.mmap) -> None:
    """Look for what is not UTF-8 also in what the decoder skips."""
    starts = range(0, len(data), _PORTION)
    if all(data[start : start + _PORTION].isascii() for start in starts):
        return
    decode = codecs.getincrementaldecoder('utf-8')().decode
    for start in starts:
        decode(data[start : start + _PORTION])
    decode(b'', True)


def _portions(
    array: memoryview, decoder: msgspec.json.Decoder
) -> Iterator[list[_Annotation]]:
    """Decode an array of objects some megabytes at a time.

    Where it is cut is no object's end if that cut leaves no sound JSON.
    """
    if bytes(array[:1]) != b'[':
        raise ValueError('no list')
    start, stop = 1, len(array) - 1
    while start < stop:
        end, tries = min(start + _PORTION, stop), 0
        while True:
            cut = _BETWEEN.search(array, end) if end < stop else None
            end = stop if cut is None else cut.start() + 1
            try:
                part = decoder.decode(b''.join((b'[', array[start:end], b']')))
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                tries += 1
                if end == stop or tries == _MOST_TRIES:
                    raise
            else:
                break
        yield part
        start = stop if cut is None else cut.end() - 1


def _column(entries: list, name: str, dtype: type) -> np.ndarray:
    # Whole numbers beyond 64 bits overflow here, and are read slowly.
    return np.fromiter(map(attrgetter(name), entries), dtype, len(entries))


def _columns(
    part: list[_Annotation], size_of: dict[int, tuple] | None
) -> tuple[np.ndarray, ...]:
    """Return the columns of some annotations, as in :class:`Table`."""
    boxes = chain.from_iterable(map(attrgetter('bbox'), part))
    return (
        _column(part, 'id', np.int64),
        _column(part, 'image_id', np.int64),
        _column(part, 'category_id', np.int64),
        np.fromiter(boxes, float, 4 * len(part)).reshape(-1, 4),
        _column(part, 'area', float),
        _column(part, 'iscrowd', np.int64),
        _column(part, 'ignore', np.int64) != 0,
        np.array(
            [_form(a, size_of) for a in part if size_of is not None], np.int8
        ),
    )


def _form(annotation: Any, size_of: dict[int, tuple]) -> int:
    form = form_of_polygons(bytes(annotation.segmentation))
    if form is None:
        size = size_of.get(annotation.image_id, (0, 0))
        form = form_of(msgspec.json.decode(annotation.segmentation), *size)
    return form


def _table_of(content: dict, path: str, with_masks: bool) -> Table:
    """Return the content of a file in which nothing is malformed."""
    images = content.get('images', [])
    annotations = content.get('annotations', [])
    categories = content['categories']
    sizes = [(i['width'], i['height']) for i in images]
    size_of = {i['id']: size for i, size in zip(images, sizes, strict=True)}
    forms = [
        form_of(a.get('segmentation'), *size_of.get(a['image_id'], (0, 0)))
        for a in annotations
        if with_masks
    ]
    crowds = [a.get('iscrowd') for a in annotations]
    return Table(
        path,
        _ids(images),
        [i['file_name'] for i in images],
        np.array(sizes, float).reshape(-1, 2),
        _ids(categories),
        [c['name'] for c in categories],
        _ids(annotations),
        _ids(annotations, 'image_id'),
        _ids(annotations, 'category_id'),
        np.array([a['bbox'] for a in annotations], float).reshape(-1, 4),
        np.array([a['area'] for a in annotations], float),
        np.array([-1 if c is None else bool(c) for c in crowds], int),
        np.array([bool(a.get('ignore')) for a in annotations], bool),
        np.array(forms, int),
    )


def _ids(entries: list[dict], name: str = 'id') -> np.ndarray:
    """Return ids of any kind, each as it is."""
    found = np.empty(len(entries), object)
    found[:] = [entry[name] for entry in entries]
    return found
