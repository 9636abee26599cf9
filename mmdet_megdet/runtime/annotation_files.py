# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Annotation files in COCO's format: what training would not use, or say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.dist import all_gather_object

from .pictures import DataError

# A box may reach over the edge by rounding.
_PIXEL = 1.0
_SHOWN = 5


class AnnotationProblem(NamedTuple):
    """What is wrong in an annotation file.

    Attributes:
        text (str): In words, with the ids.
        grave (bool): Whether mmdet would leave something out without a word
            that is meant to be learnt.
    """

    text: str
    grave: bool


def unreadable(path: str | Path) -> str | None:
    """Why a file cannot be one of annotations, without reading it.

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
        file.seek(max(0, size - 64))
        if not file.read().rstrip().endswith((b'}', b']')):
            return (
                f'the annotation file {path} is cut off, after {size} bytes: '
                'copy or download it again.'
            )
    return None


def configured_files(dataset: Any) -> Iterator[str]:
    """The local JSON files of annotations that a data set's config names."""
    if isinstance(dataset, Sequence) and not isinstance(dataset, str):
        for part in dataset:
            yield from configured_files(part)
    if not isinstance(dataset, dict):
        return
    for name in ('dataset', 'datasets'):
        yield from configured_files(dataset.get(name))
    file, root = dataset.get('ann_file'), dataset.get('data_root') or ''
    if (
        isinstance(file, str)
        and file.endswith('.json')
        and not dataset.get('backend_args')
        and '://' not in root + file
    ):
        yield os.path.join(root, file)


def check_annotation_files(cfg: Config) -> None:
    """Checks that every rank can read its annotation files; a collective.

    The data sets are built when training begins, and what they say of a file
    that they cannot read does not name it.

    Args:
        cfg (Config): This rank's config; the process group must exist.

    Raises:
        DataError: On every rank, if a file for training or validation is
            missing, empty or cut off on one of them.
    """
    files = {
        file: None
        for name in ('train_dataloader', 'val_dataloader')
        for file in configured_files((cfg.get(name) or {}).get('dataset'))
    }
    own = ' '.join(reason for reason in map(unreadable, files) if reason)
    faults = [
        f'rank {rank}: {reasons}'
        for rank, reasons in enumerate(all_gather_object(own))
        if reasons
    ]
    if faults:
        raise DataError(' '.join(faults))


def find_problems(
    path: str | Path, classes: Sequence[str]
) -> list[AnnotationProblem]:
    """What mmdet's CocoDataset leaves out, or changes, without a word.

    Args:
        path (str or Path): A file in COCO's format, which the data set has
            been built from.
        classes (Sequence[str]): The data set's ``metainfo['classes']``.
    """
    content = json.loads(Path(path).read_bytes())
    images = {image['id']: image for image in content['images']}
    annotations = [
        a for a in content.get('annotations', ()) if not a.get('ignore')
    ]
    if not images or not annotations:
        lacking = 'annotations' if images else 'pictures'
        return [AnnotationProblem(f'{path} has no {lacking}.', grave=True)]
    names = {c['id']: c['name'] for c in content['categories']}
    found: dict[str, list[dict]] = {}
    for annotation in annotations:
        kind = _kind(annotation, images, names, set(classes))
        if kind is not None:
            found.setdefault(kind, []).append(annotation)
    return [
        AnnotationProblem(
            f'{path}: {len(some)} annotation(s) {kind}: '
            f'{_listed(some, images)}.',
            grave=kind not in (_FLAT, _OVER),
        )
        for kind, some in found.items()
    ]


_FLAT = 'have a box without area, and are left out'
_OVER = 'have a box that reaches over the edge of the picture'


def _kind(
    annotation: dict, images: dict, names: dict, classes: set[str]
) -> str | None:
    """What is wrong with it."""
    image = images.get(annotation['image_id'])
    if image is None:
        return 'belong to a picture that the file has not'
    name = names.get(annotation['category_id'])
    if name is None:
        return 'have a category_id that the file does not name'
    if name not in classes:
        return f'are of the category {name!r}, which the config has not'
    left, top, width, height = annotation['bbox']
    right, bottom = left + width, top + height
    if width < 1 or height < 1 or annotation.get('area', 1) <= 0:
        return _FLAT
    if not (
        min(right, image['width']) > max(left, 0)
        and min(bottom, image['height']) > max(top, 0)
    ):
        return 'have a box that lies outside the picture'
    if (
        min(left, top) < -_PIXEL
        or right > image['width'] + _PIXEL
        or bottom > image['height'] + _PIXEL
    ):
        return _OVER
    return None


def _listed(annotations: Iterable[dict], images: dict) -> str:
    texts = []
    for annotation in annotations:
        number = annotation['image_id']
        file = images.get(number, {}).get('file_name')
        texts.append(
            f'id {annotation.get("id")} (image {number}'
            + (f', {file})' if file else ')')
        )
    rest = len(texts) - _SHOWN
    shown = ', '.join(texts[:_SHOWN])
    return f'{shown} and {rest} more' if rest > 0 else shown
