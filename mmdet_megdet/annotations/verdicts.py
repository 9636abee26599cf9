# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What one annotation file means to one data set, or to one evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from numbers import Real
from typing import NamedTuple

import numpy as np

from .datasets import Evaluation, Use
from .table import Form, Table, listed, repeated
from .verdict import Level, Verdict

# A box may reach over the edge by rounding.
_PIXEL = 1.0


class Instances(NamedTuple):
    """What mmdet's CocoDataset makes of the annotations.

    Attributes:
        image (ndarray): Each annotation's place among the images; -1: none.
        category (ndarray): Its category's place among the categories.
        label (ndarray): Its label; -1 where its category is not learnt.
        flat (ndarray): Whether its box has no area.
        outside (ndarray): Whether its box lies outside its image.
        over (ndarray): Whether its box reaches over the edge.
        kept (ndarray): Whether training uses it.
    """

    image: np.ndarray
    category: np.ndarray
    label: np.ndarray
    flat: np.ndarray
    outside: np.ndarray
    over: np.ndarray
    kept: np.ndarray


def labels_of(
    table: Table, classes: tuple[str, ...] | str, by_id: bool = False
) -> list[tuple[Hashable, str]]:
    """Return id and name of each label's category, as pycocotools finds them.

    Args:
        table (Table): The file.
        classes (tuple[str] or str): ``metainfo['classes']``.
        by_id (bool): Whether the categories are sorted before. Defaults to
            False: in the order of the file.
    """
    ids = table.category_ids.tolist()
    found = zip(ids, table.category_names, strict=True)
    found = [pair for pair in found if pair[1] in classes]
    return sorted(found) if by_id else found


def instances_of(table: Table, classes: tuple[str, ...] | str) -> Instances:
    """Return what mmdet makes of the annotations with these classes."""
    image = table.image_places()
    # Of two labels of one category the later counts.
    labels = {key: i for i, (key, _) in enumerate(labels_of(table, classes))}
    by_place = [labels.get(key, -1) for key in table.category_ids.tolist()]
    category = table.category_places()
    label = np.array([*by_place, -1])[category]
    sizes = np.append(table.sizes, [[0, 0]], axis=0)[image]
    corner, extent = table.boxes[:, :2], table.boxes[:, 2:]
    flat = (extent < 1).any(1) | (table.areas <= 0)
    shared = np.minimum(corner + extent, sizes) - np.maximum(corner, 0)
    outside = ~flat & (image >= 0) & (shared <= 0).any(1)
    over = (corner < -_PIXEL) | (corner + extent > sizes + _PIXEL)
    over = over.any(1) & ~flat & ~outside & (image >= 0)
    known = ~table.ignored & (image >= 0) & (label >= 0)
    return Instances(
        image, category, label, flat, outside, over, known & ~flat & ~outside
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
            with_objects = np.zeros(len(places), bool)
            # Boxes that are left out and crowds count here, as in mmdet.
            with_objects[
                found.image[(found.label >= 0) & (found.image >= 0)]
            ] = True
            good &= with_objects
        places = places[good]
    indices = use.config.get('indices')
    if indices is None:
        return places
    if isinstance(indices, int):
        return places[:indices] if indices >= 0 else places[indices:]
    if not isinstance(indices, list | tuple | range):
        raise TypeError(indices)
    return places[np.asarray(indices, int)]


def judge_ids(table: Table, path: str) -> Iterator[Verdict]:
    """Yield what is wrong with the ids, whatever the classes."""
    check = 'ids'
    parts: tuple[tuple[str, np.ndarray, Level], ...] = (
        ('images', table.image_ids, 'misleading'),
        ('annotations', table.ids, 'broken'),
        ('categories', table.category_ids, 'misleading'),
    )
    for part, ids, level in parts:
        twice = repeated(ids)
        if twice:
            yield Verdict(
                level,
                check,
                f'{path}: {len(twice)} id(s) of {part} occur more than once: '
                f'{listed(twice)}.',
                'Give each its own id: later ones hide earlier ones.',
            )
    files = repeated(table.file_names)
    if files:
        yield Verdict(
            'notable',
            check,
            f'{path}: {len(files)} image(s) are listed more than once: '
            f'{listed(files)}.',
            'Merge their entries, unless it is on purpose.',
        )
    bad = np.flatnonzero((table.sizes <= 0).any(1))
    if len(bad):
        yield Verdict(
            'misleading',
            check,
            f'{path}: {len(bad)} image(s) have a width or height that is not '
            f'positive: {table.name_images(bad)}.',
            'Write the sizes of the images: mmdet leaves out all boxes of '
            'these.',
        )
    lost = (
        (table.image_places(), 'belong to an image that the file has not'),
        (
            table.category_places(),
            'have a category_id that the file does not name',
        ),
    )
    for places, what in lost:
        chosen = np.flatnonzero((places < 0) & ~table.ignored)
        if len(chosen):
            yield _of_annotations(
                'misleading',
                check,
                table,
                path,
                chosen,
                what,
                'mmdet leaves them out without a word: remove them, or add '
                'what they belong to.',
            )


def judge_labels(table: Table, use: Use) -> Iterator[Verdict]:
    """Yield how the file's categories differ from the classes."""
    check, path, classes = 'categories', use.path, use.classes
    found = labels_of(table, classes)
    names = [name for _, name in found]
    if isinstance(classes, str):
        level: Level = 'notable' if names == [classes] else 'misleading'
        yield Verdict(
            level,
            check,
            f'{path}: metainfo.classes is the text {classes!r}, within which '
            f"mmdet looks for each category's name: it finds {names}.",
            f"Write classes=({classes!r},), with the comma, or the names' "
            'file.',
        )
        return
    twice = repeated(names)
    if twice:
        ids = [key for key, name in found if name in twice]
        yield Verdict(
            'misleading',
            check,
            f'{path}: {len(ids)} categories share a name: {listed(twice)} '
            f'(ids {listed(ids)}). Each is a label of its own to mmdet: '
            f'{len(names)} labels for {len(classes)} class(es).',
            'Merge them in the file: labels beyond num_classes count as '
            'background.',
        )
        return
    absent = [name for name in classes if name not in names]
    if absent:
        yield Verdict(
            'misleading',
            check,
            f'{path} has no category {listed(map(repr, absent))}; it has '
            f'{listed(map(repr, table.category_names))}.',
            "Set the data set's metainfo=dict(classes=...) to the names in "
            'the file: mmdet drops a class that is not there, and the labels '
            'of all that follow move up by one.',
        )
        return
    wrong = [
        f'label {i} is {in_file!r} in the file and {in_config!r} in the config'
        for i, (in_file, in_config) in enumerate(
            zip(names, classes, strict=False)
        )
        if in_file != in_config
    ]
    if wrong or len(names) != len(classes):
        wrong = wrong or [
            f'the config names {listed(repeated(classes))} twice'
        ]
        yield Verdict(
            'misleading',
            check,
            f'{path}: the order of its categories is not that of the classes: '
            f'{listed(wrong)}.',
            'List the classes in the order of the file: mmdet numbers labels '
            'by the file and names them by metainfo.classes.',
        )


def judge_categories(
    table: Table, found: Instances, use: Use
) -> Iterator[Verdict]:
    """Yield which categories are not learnt, and which cannot be."""
    check, path = 'categories', use.path
    known = found.image >= 0
    other = known & ~table.ignored & (found.label < 0)
    other &= found.category >= 0
    # Evaluation takes the classes alone, as one may expect.
    level: Level = 'misleading' if use.role == 'train' else 'notable'
    places = np.flatnonzero(other)
    if len(places):
        names = [
            table.category_names[i] for i in np.unique(found.category[places])
        ]
        shown = listed(map(repr, names))
        many = 'categories' if len(names) > 1 else 'category'
        yield _of_annotations(
            level,
            check,
            table,
            path,
            places,
            f'are of the {many} {shown}, which the config has not',
            'mmdet leaves them out: add them to metainfo.classes and '
            'num_classes if they are to be learnt.',
        )
    labels = labels_of(table, use.classes)
    seen = set(np.unique(found.label[known & ~table.ignored]).tolist())
    unused = [name for i, (_, name) in enumerate(labels) if i not in seen]
    if unused and len(table.ids):
        yield Verdict(
            'notable',
            check,
            f'{path}: no annotation has the category '
            f'{listed(map(repr, unused))}.',
            'Nothing can be learnt of these classes, and their AP is not '
            'defined: is it the right file?',
        )


def judge_boxes(table: Table, found: Instances, use: Use) -> Iterator[Verdict]:
    """Yield which boxes are left out or changed."""
    meant = (found.image >= 0) & (found.label >= 0) & ~table.ignored
    kinds: tuple[tuple[Level, np.ndarray, str, str], ...] = (
        (
            'notable',
            found.flat,
            'have a box without area (width, height or area below 1 pixel)',
            'mmdet leaves them out without a word: mend or remove them.',
        ),
        (
            'misleading',
            found.outside,
            'have a box that lies outside the image',
            'mmdet leaves them out without a word: mend or remove them.',
        ),
        (
            'notable',
            found.over,
            'have a box that reaches over the edge of the image',
            'mmdet clips them in Resize. Look whether the sizes in the file '
            'are those of the images.',
        ),
    )
    for level, chosen, what, remedy in kinds:
        places = np.flatnonzero(chosen & meant)
        if len(places):
            yield _of_annotations(
                level, 'boxes', table, use.path, places, what, remedy
            )


def judge_masks(table: Table, found: Instances, use: Use) -> Iterator[Verdict]:
    """Yield which segmentations LoadAnnotations does not take."""
    if not use.with_masks:
        return
    kinds: tuple[tuple[Level, Form, str, str], ...] = (
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
    for level, form, what, remedy in kinds:
        places = np.flatnonzero(found.kept & (table.forms == form))
        if len(places):
            yield _of_annotations(
                level, 'masks', table, use.path, places, what, remedy
            )


def judge_evaluation(
    table: Table, evaluation: Evaluation, wanted: set[Hashable]
) -> Iterator[Verdict]:
    """Yield what would stop CocoMetric, after an epoch.

    Args:
        table (Table): The evaluation's file.
        evaluation (Evaluation): What is evaluated.
        wanted (set): Ids of the categories that are.
    """
    if evaluation.format_only:
        return
    path, check = evaluation.path, 'evaluation'
    known = table.image_places() >= 0
    evaluated = [key in wanted for key in table.category_ids.tolist()]
    seen = known & np.array([*evaluated, False])[table.category_places()]
    ids = table.ids.tolist()
    numbers = [isinstance(key, Real) for key in ids]
    zero = np.array([key == 0 for key in ids], bool)
    kinds: list[tuple[Level, np.ndarray, str, str]] = [
        (
            'broken',
            table.iscrowd < 0,
            'have no iscrowd, which the evaluation asks for',
            'Write iscrowd=0 into these entries.',
        ),
        (
            'broken',
            ~np.array(numbers, bool),
            'have an id that is no number, which the evaluation asks for',
            'Number the annotations, from 1.',
        ),
        (
            'notable',
            zero,
            'have the id 0, by which pycocotools says that nothing matched: '
            'they count as missed',
            'Number the annotations from 1.',
        ),
    ]
    if evaluation.with_masks:
        good = np.isin(table.forms, (Form.POLYGONS, Form.RLE))
        kinds.append(
            (
                'broken',
                ~good,
                'have no segmentation that can be evaluated',
                'Mend or remove them, or evaluate boxes alone.',
            )
        )
    for level, chosen, what, remedy in kinds:
        places = np.flatnonzero(chosen & seen)
        if len(places):
            yield _of_annotations(
                level, check, table, path, places, what, remedy
            )


def judge_rest(
    table: Table,
    found: Instances,
    images: np.ndarray | None,
    use: Use,
    empty: Level | None,
) -> Iterator[Verdict]:
    """Yield whether anything is left to learn or to evaluate.

    Args:
        table (Table): The file.
        found (Instances): What mmdet makes of its annotations.
        images (ndarray, optional): Places of the images that the data set
            keeps, if that is known.
        use (Use): The data set.
        empty (str, optional): How bad it is if no object is left; None if
            it is not.
    """
    path = use.path
    if not len(table.image_ids) or (images is not None and not len(images)):
        why = f'{path} has no images.'
        if len(table.image_ids):
            rule = dict(use.config.get('filter_cfg') or {})
            why = (
                f'{path}: not one of its {len(table.image_ids)} images is '
                f'left by filter_cfg={rule} and '
                f'indices={use.config.get("indices")}.'
            )
        yield Verdict(
            'broken',
            'images',
            why,
            'Is it the right file, and the right rule?',
        )
        return
    if empty is None:
        return
    if not len(table.ids):
        yield Verdict(
            empty,
            'annotations',
            f'{path} has no annotations.',
            'It is empty: look at what wrote it, or whether it is the right '
            'file.',
        )
        return
    kept = found.kept
    if images is not None:
        kept = kept & np.isin(found.image, images)
    if use.role == 'train':
        # Crowds are there to be ignored.
        kept = kept & (table.iscrowd <= 0)
    if not kept.any():
        yield Verdict(
            empty,
            'annotations',
            f'{path}: not one of its {len(table.ids)} annotations is left: '
            f'{int(found.flat.sum())} without area, '
            f'{int(found.outside.sum())} outside their image, '
            f'{int((found.label < 0).sum())} of other categories, '
            f'{int((found.image < 0).sum())} of no image, '
            f'{int(table.ignored.sum())} with ignore, '
            f'{int((table.iscrowd > 0).sum())} crowds.',
            'There is nothing to learn: is it the right file, and boxes as '
            '[x, y, width, height] in pixels?',
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
        f'{int(found.kept.sum())} of {len(table.ids)} annotations '
        f'({int((found.kept & (table.iscrowd > 0)).sum())} crowds), '
        f'{len(labels_of(table, use.classes))} of '
        f'{len(table.category_names)} categories.',
    )


def _of_annotations(
    level: Level,
    check: str,
    table: Table,
    path: str,
    places: np.ndarray,
    what: str,
    remedy: str,
) -> Verdict:
    return Verdict(
        level,
        check,
        f'{path}: {len(places)} annotation(s) {what}: '
        f'{table.name_annotations(places)}.',
        remedy,
    )
