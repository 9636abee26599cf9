# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Checks of one annotation file for one data set, or one evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from ..text import some
from .datasets import Use
from .segmentation import Form
from .table import Table
from .verdict import Level, Verdict

# A box may reach over the edge by rounding.
_PIXEL = 1.0
_LEFT_OUT = 'mmdet leaves them out without a word: mend or remove them.'
_MEND = 'Mend or remove these annotations.'
_ADD = 'mmdet leaves them out: add them to metainfo.classes and num_classes.'
_CLIPPED = 'mmdet clips them. Are the sizes in the file those of the images?'
_FLAT = 'have a box without area (width, height or area below 1 pixel)'
_OUTSIDE = 'have a box that lies outside the image'
_OVER = 'have a box that reaches over the edge of the image'
_UNMATCHED = 'have the id 0, by which pycocotools says that nothing matched'
_NO_MASK = (
    'have no segmentation that is a list of polygons [[x, y, ...], ...] or '
    'RLE of the size [height, width] of the image'
)
# Level, which annotations, what they have, and the remedy.
_Row = tuple[Level, np.ndarray, str, str]


class Instances(NamedTuple):
    """What mmdet's CocoDataset makes of each annotation."""

    label: np.ndarray  # -1 where its category is not learnt
    flat: np.ndarray  # whether its box has no area
    outside: np.ndarray  # whether its box lies outside its image
    over: np.ndarray  # whether its box reaches over the edge
    known: np.ndarray  # whether its image is known, and it is not ignored
    kept: np.ndarray  # whether training uses it


def labels_of(
    table: Table, classes: tuple[str, ...]
) -> list[tuple[Hashable, str]]:
    """Return id and name of each label's category, as pycocotools does."""
    pairs = zip(table.category_ids, table.category_names, strict=True)
    return [pair for pair in pairs if pair[1] in classes]


def instances_of(table: Table, classes: tuple[str, ...]) -> Instances:
    """Return what mmdet makes of the annotations with these classes."""
    in_image = table.image_places >= 0
    # Of two labels of one category the later counts.
    labels = {key: i for i, (key, _) in enumerate(labels_of(table, classes))}
    by_place = [labels.get(key, -1) for key in table.category_ids.tolist()]
    label = np.array([*by_place, -1])[table.category_places]
    sizes = np.append(table.sizes, [[0, 0]], axis=0)[table.image_places]
    corner, extent = table.boxes[:, :2], table.boxes[:, 2:]
    flat = (extent < 1).any(1) | (table.areas <= 0)
    shared = np.minimum(corner + extent, sizes) - np.maximum(corner, 0)
    outside = ~flat & in_image & (shared <= 0).any(1)
    over = (corner < -_PIXEL) | (corner + extent > sizes + _PIXEL)
    over = over.any(1) & ~flat & ~outside
    known = in_image & ~table.ignored
    kept = known & (label >= 0) & ~flat & ~outside
    return Instances(label, flat, outside, over, known, kept)


def used_images(table: Table, found: Instances, use: Use) -> np.ndarray:
    """Return the places of the images that a data set keeps, in its order."""
    good = table.sizes.min(1, initial=np.inf) >= use.rule.get('min_size', 0)
    places = np.arange(len(good))
    if use.rule.get('filter_empty_gt'):
        # Boxes that are left out and crowds count here, as in mmdet.
        good &= np.isin(places, table.image_places[found.label >= 0])
    if use.rule:
        places = places[good]
    if use.indices is None:
        return places
    if isinstance(use.indices, int):
        ends = (0, use.indices) if use.indices >= 0 else (use.indices, None)
        return places[slice(*ends)]
    if not isinstance(use.indices, list | tuple | range):
        raise TypeError(use.indices)
    return places[np.asarray(use.indices, int)]


def check_file(table: Table) -> Iterator[Verdict]:
    """Yield verdicts on a file that hold whatever the classes are."""
    parts: tuple[tuple[str, np.ndarray, Level], ...] = (
        ('images', table.image_ids, 'misleading'),
        ('annotations', table.ids, 'broken'),
        ('categories', table.category_ids, 'misleading'),
    )
    for part, ids, level in parts:
        twice = _repeated(ids.tolist())
        if twice:
            yield Verdict(
                level,
                f'{table.path}: {len(twice)} id(s) of {part} occur more than '
                f'once: {some(twice, 5)}.',
                'Give each its own id: later ones hide earlier ones.',
            )
    lost = (table.image_places < 0) | (table.category_places < 0)
    what = 'belong to an image or a category that the file has not'
    row: _Row = ('misleading', lost & ~table.ignored, what, _LEFT_OUT)
    yield from _verdicts(table, [row])


def check_labels(
    path: str, names: Sequence[str], wanted: Sequence[str], whose: str
) -> Iterator[Verdict]:
    """Yield a verdict if a file's labels mean other classes than wanted."""
    differing = [
        f'label {i} is {ours!r} in the file and {theirs!r} in {whose}'
        for i, (ours, theirs) in enumerate(zip_longest(names, wanted))
        if ours != theirs
    ]
    if differing:
        yield Verdict(
            'misleading',
            f'{path}: the categories are not those of {whose} in their order: '
            f'{some(differing, 5)}.',
            'Give each file the categories of metainfo.classes, each once, in '
            'this order: mmdet numbers labels by the file.',
        )


def check_annotations(
    table: Table, found: Instances, use: Use
) -> Iterator[Verdict]:
    """Yield which annotations a data set leaves out, changes or cannot use."""
    other = found.known & (found.label < 0) & (table.category_places >= 0)
    places = np.unique(table.category_places[other])
    names = some((repr(table.category_names[i]) for i in places), 5)
    meant = found.known & (found.label >= 0)
    # Evaluation takes the classes alone, as one may expect.
    level: Level = 'misleading' if use.role == 'train' else 'notable'
    what = f'are of categories that the config has not, {names}'
    rows: list[_Row] = [
        (level, other, what, _ADD),
        ('notable', found.flat & meant, _FLAT, _LEFT_OUT),
        ('misleading', found.outside & meant, _OUTSIDE, _LEFT_OUT),
        ('notable', found.over & meant, _OVER, _CLIPPED),
    ]
    if use.with_masks:
        bad = found.kept & (table.forms == Form.BAD)
        short = found.kept & (table.forms == Form.SHORT)
        rows += [
            ('broken', bad, _NO_MASK, _MEND),
            ('notable', short, 'have no polygon of 3 points', _MEND),
        ]
    yield from _verdicts(table, rows)


def check_evaluation(
    table: Table, classes: tuple[str, ...], with_masks: bool
) -> Iterator[Verdict]:
    """Yield verdicts on what would stop CocoMetric after an epoch."""
    instances = instances_of(table, classes)
    seen = (instances.label >= 0) & (table.image_places >= 0)
    what = 'have no iscrowd, which the evaluation asks for'
    rows: list[_Row] = [
        ('broken', seen & (table.iscrowd < 0), what, 'Write iscrowd=0.'),
        ('notable', seen & (table.ids == 0), _UNMATCHED, 'Number from 1.'),
    ]
    if with_masks:
        bad = seen & (table.forms != Form.GOOD)
        rows.append(('broken', bad, _NO_MASK, _MEND))
    yield from _verdicts(table, rows)


def _verdicts(table: Table, rows: Iterable[_Row]) -> Iterator[Verdict]:
    for level, chosen, what, remedy in rows:
        places = np.flatnonzero(chosen)
        if len(places):
            text = (
                f'{table.path}: {len(places)} annotation(s) {what}: '
                f'{table.name_annotations(places)}.'
            )
            yield Verdict(level, text, remedy)


def _repeated(values: list[Hashable]) -> list[Hashable]:
    if len(set(values)) == len(values):  # counting takes longer
        return []
    return [value for value, n in Counter(values).items() if n > 1]
