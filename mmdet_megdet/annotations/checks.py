# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What one annotation file means to one data set, or to one evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from numbers import Real
from typing import NamedTuple

import numpy as np

from ..text import some
from .datasets import Evaluation, Use
from .segmentation import Form
from .table import Table, repeated
from .verdict import Level, Verdict

# A box may reach over the edge by rounding.
_PIXEL = 1.0


class Instances(NamedTuple):
    """What mmdet's CocoDataset makes of each annotation."""

    label: np.ndarray  # -1 where its category is not learnt
    flat: np.ndarray  # whether its box has no area
    outside: np.ndarray  # whether its box lies outside its image
    over: np.ndarray  # whether its box reaches over the edge
    meant: np.ndarray  # whether image and label are known; not ignored
    kept: np.ndarray  # whether training uses it


def labels_of(
    table: Table, classes: tuple[str, ...] | str, by_id: bool = False
) -> list[tuple[Hashable, str]]:
    """Return id and name of each label's category, as pycocotools finds them.

    In the order of the file, unless CocoMetric sorts them by id.
    """
    ids = table.category_ids.tolist()
    pairs = zip(ids, table.category_names, strict=True)
    found = [pair for pair in pairs if pair[1] in classes]
    return sorted(found) if by_id else found


def instances_of(table: Table, classes: tuple[str, ...] | str) -> Instances:
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
    over = over.any(1) & ~flat & ~outside & in_image
    meant = ~table.ignored & in_image & (label >= 0)
    return Instances(
        label, flat, outside, over, meant, meant & ~flat & ~outside
    )


def used_images(table: Table, found: Instances, use: Use) -> np.ndarray:
    """Return the places of the images that a data set keeps, in its order.

    Raises:
        IndexError: If ``indices`` names images that there are not.
        TypeError: If ``indices`` is neither a number nor a list of them.
    """
    rule = use.config.get('filter_cfg')
    places = np.arange(len(table.image_ids))
    if rule and not use.config.get('test_mode'):
        good = table.sizes.min(1, initial=np.inf) >= rule.get('min_size', 0)
        if rule.get('filter_empty_gt'):
            # Boxes that are left out and crowds count here, as in mmdet.
            good &= np.isin(places, table.image_places[found.label >= 0])
        places = places[good]
    indices = use.config.get('indices')
    if indices is None:
        return places
    if isinstance(indices, int):
        return places[:indices] if indices >= 0 else places[indices:]
    if not isinstance(indices, list | tuple | range):
        raise TypeError(indices)
    return places[np.asarray(indices, int)]


def check_ids(table: Table) -> Iterator[Verdict]:
    """Yield what is wrong with the ids, whatever the classes."""
    parts: tuple[tuple[str, np.ndarray, Level], ...] = (
        ('images', table.image_ids, 'misleading'),
        ('annotations', table.ids, 'broken'),
        ('categories', table.category_ids, 'misleading'),
    )
    for part, ids, level in parts:
        twice = repeated(ids.tolist())
        if twice:
            yield Verdict(
                level,
                'ids',
                f'{table.path}: {len(twice)} id(s) of {part} occur more than '
                f'once: {some(twice, 5)}.',
                'Give each its own id: later ones hide earlier ones.',
            )
    files = repeated(table.file_names)
    if files:
        yield Verdict(
            'notable',
            'ids',
            f'{table.path}: {len(files)} image(s) are listed more than once: '
            f'{some(files, 5)}.',
            'Merge their entries, unless it is on purpose.',
        )
    bad = np.flatnonzero((table.sizes <= 0).any(1))
    if len(bad):
        yield Verdict(
            'misleading',
            'ids',
            f'{table.path}: {len(bad)} image(s) have a width or height that '
            f'is not positive: {table.name_images(bad)}.',
            'Write the sizes of the images: mmdet leaves out all boxes of '
            'these.',
        )
    for places, what in (
        (table.image_places, 'belong to an image that the file has not'),
        (
            table.category_places,
            'have a category_id that the file does not name',
        ),
    ):
        yield from _of_annotations(
            table,
            'ids',
            'misleading',
            (places < 0) & ~table.ignored,
            what,
            'mmdet leaves them out without a word: remove them, or add what '
            'they belong to.',
        )


def check_classes(table: Table, use: Use) -> Iterator[Verdict]:
    """Yield how the file's categories differ from the classes."""
    path, classes = use.path, use.classes
    found = labels_of(table, classes)
    names = [name for _, name in found]
    level: Level = 'misleading'
    twice = repeated(names)
    absent = [name for name in classes if name not in names]
    if isinstance(classes, str):
        level = 'notable' if names == [classes] else 'misleading'
        text = (
            f'{path}: metainfo.classes is the text {classes!r}, within which '
            f"mmdet looks for each category's name: it finds {names}."
        )
        remedy = (
            f"Write classes=({classes!r},), with the comma, or the names' "
            'file.'
        )
    elif twice:
        ids = [key for key, name in found if name in twice]
        text = (
            f'{path}: {len(ids)} categories share a name: {some(twice, 5)} '
            f'(ids {some(ids, 5)}). Each is a label of its own to mmdet: '
            f'{len(names)} labels for {len(classes)} class(es).'
        )
        remedy = (
            'Merge them in the file: labels beyond num_classes count as '
            'background.'
        )
    elif absent:
        text = (
            f'{path} has no category {some(map(repr, absent), 5)}; it has '
            f'{some(map(repr, table.category_names), 5)}.'
        )
        remedy = (
            "Set the data set's metainfo=dict(classes=...) to the names in "
            'the file: mmdet drops a class that is not there, and the labels '
            'of all that follow move up by one.'
        )
    elif names != list(classes):
        pairs = enumerate(zip(names, classes, strict=False))
        wrong = [
            f'label {i} is {ours!r} in the file and {theirs!r} in the config'
            for i, (ours, theirs) in pairs
            if ours != theirs
        ] or [f'the config names {some(repeated(classes), 5)} twice']
        text = (
            f'{path}: the order of its categories is not that of the classes: '
            f'{some(wrong, 5)}.'
        )
        remedy = (
            'List the classes in the order of the file: mmdet numbers labels '
            'by the file and names them by metainfo.classes.'
        )
    else:
        return
    yield Verdict(level, 'categories', text, remedy)


def check_categories(
    table: Table, found: Instances, use: Use
) -> Iterator[Verdict]:
    """Yield which categories are not learnt, and which cannot be."""
    known = (table.image_places >= 0) & ~table.ignored
    other = known & (found.label < 0) & (table.category_places >= 0)
    names = [
        repr(table.category_names[i])
        for i in np.unique(table.category_places[other])
    ]
    many = 'categories' if len(names) > 1 else 'category'
    yield from _of_annotations(
        table,
        'categories',
        # Evaluation takes the classes alone, as one may expect.
        'misleading' if use.role == 'train' else 'notable',
        other,
        f'are of the {many} {some(names, 5)}, which the config has not',
        'mmdet leaves them out: add them to metainfo.classes and num_classes '
        'if they are to be learnt.',
    )
    labels = labels_of(table, use.classes)
    seen = set(np.unique(found.label[known]).tolist())
    unused = [
        repr(name) for i, (_, name) in enumerate(labels) if i not in seen
    ]
    if unused and len(table.ids):
        yield Verdict(
            'notable',
            'categories',
            f'{use.path}: no annotation has the category {some(unused, 5)}.',
            'Nothing can be learnt of these classes, and their AP is not '
            'defined: is it the right file?',
        )


def check_boxes(table: Table, found: Instances) -> Iterator[Verdict]:
    """Yield which boxes are left out or changed."""
    left_out = 'mmdet leaves them out without a word: mend or remove them.'
    rows: tuple[tuple[Level, np.ndarray, str, str], ...] = (
        (
            'notable',
            found.flat,
            'have a box without area (width, height or area below 1 pixel)',
            left_out,
        ),
        (
            'misleading',
            found.outside,
            'have a box that lies outside the image',
            left_out,
        ),
        (
            'notable',
            found.over,
            'have a box that reaches over the edge of the image',
            'mmdet clips them in Resize. Look whether the sizes in the file '
            'are those of the images.',
        ),
    )
    for level, chosen, what, remedy in rows:
        chosen = chosen & found.meant
        yield from _of_annotations(table, 'boxes', level, chosen, what, remedy)


_MASK_FAULTS: tuple[tuple[Level, Form, str, str], ...] = (
    (
        'broken',
        Form.NONE,
        'have no segmentation, and the pipeline loads masks',
        'Add them, remove these annotations, or train without masks.',
    ),
    (
        'broken',
        Form.MALFORMED,
        'have a segmentation that is neither a list of polygons [[x, y, '
        '...], ...] nor RLE with counts and size',
        'Mend or remove these annotations.',
    ),
    (
        'broken',
        Form.OTHER_SIZE,
        "have RLE whose size is not [height, width] of the image's entry",
        'Mend the size of the RLE or of the image.',
    ),
    (
        'notable',
        Form.SHORT,
        'have no polygon of three points',
        'mmdet ignores them without a word: mend or remove them.',
    ),
)


def check_masks(table: Table, found: Instances) -> Iterator[Verdict]:
    """Yield which segmentations LoadAnnotations does not take."""
    for level, form, what, remedy in _MASK_FAULTS:
        chosen = found.kept & (table.forms == form)
        yield from _of_annotations(table, 'masks', level, chosen, what, remedy)


def check_evaluation(
    table: Table, evaluation: Evaluation, wanted: set[Hashable]
) -> Iterator[Verdict]:
    """Yield what would stop CocoMetric, after an epoch."""
    evaluated = [key in wanted for key in table.category_ids.tolist()]
    seen = np.array([*evaluated, False])[table.category_places]
    seen &= table.image_places >= 0
    ids = table.ids.tolist()
    numbers = np.array([isinstance(key, Real) for key in ids], bool)
    rows: list[tuple[Level, np.ndarray, str, str]] = [
        (
            'broken',
            table.iscrowd < 0,
            'have no iscrowd, which the evaluation asks for',
            'Write iscrowd=0 into these entries.',
        ),
        (
            'broken',
            ~numbers,
            'have an id that is no number, which the evaluation asks for',
            'Number the annotations, from 1.',
        ),
        (
            'notable',
            np.array([key == 0 for key in ids], bool),
            'have the id 0, by which pycocotools says that nothing matched: '
            'they count as missed',
            'Number the annotations from 1.',
        ),
    ]
    if evaluation.with_masks:
        rows.append(
            (
                'broken',
                ~np.isin(table.forms, (Form.POLYGONS, Form.RLE)),
                'have no segmentation that can be evaluated',
                'Mend or remove them, or evaluate boxes alone.',
            )
        )
    for level, chosen, what, remedy in rows:
        chosen = chosen & seen
        yield from _of_annotations(
            table, 'evaluation', level, chosen, what, remedy
        )


def check_rest(
    table: Table,
    found: Instances,
    images: np.ndarray | None,
    use: Use,
    empty: Level | None,
) -> Verdict | None:
    """Return that nothing is left to learn or to evaluate, if so it is.

    ``images`` are the places of those that the data set keeps, if that is
    known; ``empty`` is how bad it is if no object is left, None if it is not.
    """
    path, entries = use.path, len(table.image_ids)
    if entries == 0 or (images is not None and len(images) == 0):
        why = f'{path} has no images.'
        if entries:
            why = (
                f'{path}: not one of its {entries} images is left by '
                f'filter_cfg={dict(use.config.get("filter_cfg") or {})} and '
                f'indices={use.config.get("indices")}.'
            )
        remedy = 'Is it the right file, and the right rule?'
        return Verdict('broken', 'images', why, remedy)
    kept = found.kept
    if images is not None:
        kept = kept & np.isin(table.image_places, images)
    if use.role == 'train':
        # Crowds are there to be ignored.
        kept = kept & (table.iscrowd <= 0)
    if empty is None or kept.any():
        return None
    if not len(table.ids):
        return Verdict(
            empty,
            'annotations',
            f'{path} has no annotations.',
            'It is empty: look at what wrote it, or whether it is the right '
            'file.',
        )
    return Verdict(
        empty,
        'annotations',
        f'{path}: not one of its {len(table.ids)} annotations is left: '
        f'{found.flat.sum()} without area, {found.outside.sum()} outside '
        f'their image, {(found.label < 0).sum()} of other categories, '
        f'{(table.image_places < 0).sum()} of no image, '
        f'{table.ignored.sum()} with ignore, '
        f'{(table.iscrowd > 0).sum()} crowds.',
        'There is nothing to learn: is it the right file, and boxes as [x, y, '
        'width, height] in pixels?',
    )


def wrong_indices(table: Table, use: Use) -> Verdict:
    """Return that ``indices`` names images that there are not."""
    return Verdict(
        'broken',
        'images',
        f'{use.path}: indices={use.config.get("indices")!r} is neither a '
        'number nor a list of places among the images that filter_cfg leaves '
        f'of {len(table.image_ids)}.',
        "Mend the data set's indices.",
    )


def describe(table: Table, found: Instances, images: int, use: Use) -> Verdict:
    """Return what a sound data set uses of its file."""
    return Verdict(
        'sound',
        'annotations',
        f'{use.path}: {images} of {len(table.image_ids)} images are used, '
        f'{found.kept.sum()} of {len(table.ids)} annotations '
        f'({(found.kept & (table.iscrowd > 0)).sum()} crowds), '
        f'{len(labels_of(table, use.classes))} of '
        f'{len(table.category_names)} categories.',
    )


def _of_annotations(
    table: Table,
    check: str,
    level: Level,
    chosen: np.ndarray,
    what: str,
    remedy: str,
) -> Iterator[Verdict]:
    """Yield a verdict on the annotations that are chosen, if there are."""
    places = np.flatnonzero(chosen)
    if len(places):
        yield Verdict(
            level,
            check,
            f'{table.path}: {len(places)} annotation(s) {what}: '
            f'{table.name_annotations(places)}.',
            remedy,
        )
