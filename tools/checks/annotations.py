# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An annotation file in COCO format: ids, categories, boxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from numbers import Real
from typing import Any

from .report import Finding, failure, passed, some, warning

# A box may reach over the edge by rounding.
_PIXEL = 1.0


def check_annotations(data_set: Any, content: dict) -> Iterator[Finding]:
    """Everything that the file alone can tell.

    Args:
        data_set (DataSet): Whose it is.
        content (dict): The file, with lists of images, annotations and
            categories.
    """
    name = data_set.name
    problems = list(_ids(name, content))
    yield from problems
    if not content['images'] or not content['annotations']:
        yield failure(
            f'annotations ({name})',
            'the file has no '
            + ('pictures' if not content['images'] else 'annotations'),
            'It is empty: look at what wrote it, or whether it is the right '
            'file.',
        )
        return
    yield from _categories(name, content, data_set.classes)
    if not problems:
        yield from _boxes(name, content)
        if data_set.with_masks:
            yield from _masks(name, content)


def _ids(name: str, content: dict) -> Iterator[Finding]:
    check = f'ids ({name})'
    for part in ('images', 'annotations', 'categories'):
        bad = [
            i
            for i, entry in enumerate(content[part])
            if not _whole(part, entry)
        ]
        if bad:
            yield failure(
                check,
                f'{len(bad)} of {part} lack {" or ".join(_NEEDED[part])}; '
                f'places in the list: {some(bad)}',
                'Complete or remove these entries.',
            )
            return
        twice = _repeated(entry['id'] for entry in content[part])
        if twice:
            yield failure(
                check,
                f'{len(twice)} ids of {part} occur more than once: '
                f'{some(twice)}',
                'Give each its own id: later ones hide earlier ones.',
            )
    images = {image['id'] for image in content['images']}
    categories = {category['id'] for category in content['categories']}
    for key, known in (('image_id', images), ('category_id', categories)):
        lost = [
            f'annotation {a["id"]} ({key} {a[key]})'
            for a in content['annotations']
            if a[key] not in known
        ]
        if lost:
            yield failure(
                check,
                f'{len(lost)} annotations name a {key} that the file has '
                f'not: {some(lost)}',
                'Remove them, or add what they belong to.',
            )
    files = _repeated(image['file_name'] for image in content['images'])
    if files:
        yield warning(
            check,
            f'{len(files)} pictures are listed more than once: {some(files)}',
            'Merge their entries, unless it is on purpose.',
        )


_NEEDED = dict(
    images=('id', 'file_name', 'width', 'height'),
    annotations=('id', 'image_id', 'category_id', 'bbox', 'area'),
    categories=('id', 'name'),
)


def _whole(part: str, entry: Any) -> bool:
    return isinstance(entry, dict) and all(k in entry for k in _NEEDED[part])


def _repeated(values: Iterable) -> list:
    return [value for value, n in Counter(values).items() if n > 1]


def _categories(
    name: str, content: dict, classes: tuple[str, ...]
) -> Iterator[Finding]:
    """The file's categories against the config's classes."""
    check = f'categories ({name})'
    names = [category.get('name') for category in content['categories']]
    absent = [c for c in classes if c not in names]
    if absent:
        yield failure(
            check,
            f'the file has no category {some(absent, 5)}; it has '
            f'{some(names, 8)}',
            "Set the data set's metainfo=dict(classes=...) to the names in "
            'the file: mmdet drops a class that is not there, and the labels '
            'of all that follow move up by one.',
        )
        return
    # mmdet labels in the file's order, and names in the config's.
    order = [c for c in names if c in classes]
    wrong = [
        f'label {i} is {in_file!r} in the file and {in_config!r} in the config'
        for i, (in_file, in_config) in enumerate(
            zip(order, classes, strict=False)
        )
        if in_file != in_config
    ]
    if wrong:
        yield failure(
            check,
            f'the order differs: {some(wrong, 2)}',
            'List the classes in the order of the file: mmdet numbers labels '
            'by the file and names them by metainfo.classes.',
        )
    used = Counter(a['category_id'] for a in content['annotations'])
    extra = {
        c['name']: used[c['id']]
        for c in content['categories']
        if c.get('name') not in classes
    }
    if extra:
        yield warning(
            check,
            f'{len(extra)} are not among the classes, and their '
            f'{sum(extra.values())} annotations are left out: '
            f'{some(extra, 5)}',
            'Add them to metainfo.classes and num_classes if they are to be '
            'learnt.',
        )
    unused = [
        c['name']
        for c in content['categories']
        if c.get('name') in classes and not used[c['id']]
    ]
    if unused:
        yield warning(
            check,
            f'no annotation has {some(unused, 5)}',
            'Nothing can be learnt of these classes, and their AP is not '
            'defined: is it the right file?',
        )
    if not (wrong or extra or unused):
        yield passed(check, f'{len(classes)}, the same as the classes')


def _boxes(name: str, content: dict) -> Iterator[Finding]:
    check = f'boxes ({name})'
    sizes = {i['id']: (i['width'], i['height']) for i in content['images']}
    malformed, flat, outside, over = [], [], [], []
    crowds = 0
    for annotation in content['annotations']:
        crowds += bool(annotation.get('iscrowd'))
        box, number = annotation['bbox'], annotation['id']
        if not _is_box(box):
            malformed.append(number)
            continue
        x, y, w, h = box
        width, height = sizes[annotation['image_id']]
        if w < 1 or h < 1 or annotation['area'] <= 0:
            flat.append(number)
        elif x >= width or y >= height or x + w <= 0 or y + h <= 0:
            outside.append(number)
        elif (
            min(x, y) < -_PIXEL
            or x + w > width + _PIXEL
            or y + h > height + _PIXEL
        ):
            over.append(number)
    if malformed:
        yield failure(
            check,
            f'{len(malformed)} are not four numbers: annotations '
            f'{some(malformed)}',
            'Write them as [x, y, width, height] in pixels.',
        )
    for numbers, what in (
        (flat, 'have no area (width, height or area below 1 pixel)'),
        (outside, 'lie outside their picture'),
    ):
        if numbers:
            yield warning(
                check,
                f'{len(numbers)} {what}: annotations {some(numbers)}',
                'mmdet leaves these out without a word: mend or remove them.',
            )
    if over:
        yield warning(
            check,
            f'{len(over)} reach over the edge of their picture: annotations '
            f'{some(over)}',
            'mmdet clips them in Resize. Look whether the sizes in the file '
            'are those of the pictures.',
        )
    used = {annotation['image_id'] for annotation in content['annotations']}
    empty = len(sizes) - len(used)
    good = len(content['annotations']) - sum(
        map(len, (malformed, flat, outside, over))
    )
    yield passed(
        check,
        f'{good} lie well in their pictures; {crowds} crowds, {empty} '
        'pictures without objects',
    )


def _is_box(box: Any) -> bool:
    return (
        isinstance(box, list)
        and len(box) == 4
        and all(isinstance(n, Real) and isfinite(n) for n in box)
    )


def _masks(name: str, content: dict) -> Iterator[Finding]:
    lacking = [
        annotation['id']
        for annotation in content['annotations']
        if not annotation.get('segmentation')
    ]
    if lacking:
        yield failure(
            f'masks ({name})',
            f'{len(lacking)} annotations have no segmentation, and the '
            f'pipeline loads masks: annotations {some(lacking)}',
            'Add them, remove these annotations, or train without masks.',
        )
    else:
        yield passed(f'masks ({name})', 'every annotation has one')
