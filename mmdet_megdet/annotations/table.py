# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An annotation file's content as columns, and the words for its parts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

_SHOWN = 5


class Form(IntEnum):
    """What mmdet makes of an annotation's segmentation."""

    NONE = 0  # not there, or empty
    POLYGONS = 1
    SHORT = 2  # no polygon with three points and whole pairs
    RLE = 3
    OTHER_SIZE = 4  # RLE of an image of another size
    MALFORMED = 5


class Table(NamedTuple):
    """A file in COCO's format whose entries are all well formed.

    Attributes:
        image_ids (list): Ids of the images.
        file_names (list[str]): Of the images.
        sizes (ndarray): Width and height of the images, (n, 2).
        category_ids (list): Ids of the categories.
        category_names (list): Names of the categories.
        ids (list): Ids of the annotations.
        image_of (list): Their ``image_id``.
        category_of (list): Their ``category_id``.
        boxes (ndarray): Left, top, width and height, (m, 4).
        areas (ndarray): Their ``area``.
        iscrowd (ndarray): Their ``iscrowd``; -1 where there is none.
        ignored (ndarray): Whether ``ignore`` is set, which mmdet leaves out.
        forms (ndarray): A :class:`Form` each; empty if not asked for.
    """

    image_ids: list[Hashable]
    file_names: list[str]
    sizes: np.ndarray
    category_ids: list[Hashable]
    category_names: list[Any]
    ids: list[Hashable]
    image_of: list[Hashable]
    category_of: list[Hashable]
    boxes: np.ndarray
    areas: np.ndarray
    iscrowd: np.ndarray
    ignored: np.ndarray
    forms: np.ndarray

    def image_places(self) -> np.ndarray:
        """Return each annotation's place among the images; -1 for none."""
        return _places(self.image_ids, self.image_of)

    def category_places(self) -> np.ndarray:
        """Return each annotation's place among the categories; -1: none."""
        return _places(self.category_ids, self.category_of)

    def name_annotations(self, chosen: Sequence[int]) -> str:
        """Return the ids of annotations, with those of their images.

        Args:
            chosen (Sequence[int]): Places in the list of annotations.
        """
        names = dict(zip(self.image_ids, self.file_names, strict=True))
        texts = []
        for place in chosen[:_SHOWN]:
            image = self.image_of[place]
            file = f', {names[image]}' if image in names else ''
            texts.append(f'id {self.ids[place]} (image {image}{file})')
        return listed(texts, len(chosen))

    def name_images(self, chosen: Sequence[int]) -> str:
        """Return the ids of images, with their files.

        Args:
            chosen (Sequence[int]): Places in the list of images.
        """
        texts = [
            f'id {self.image_ids[place]} ({self.file_names[place]})'
            for place in chosen[:_SHOWN]
        ]
        return listed(texts, len(chosen))


def _places(known: list[Hashable], wanted: list[Hashable]) -> np.ndarray:
    # Of entries with one id the last counts, as in pycocotools.
    place = {key: i for i, key in enumerate(known)}.get
    return np.fromiter(
        (place(key, -1) for key in wanted), np.int64, len(wanted)
    )


def listed(texts: Iterable[Any], count: int | None = None) -> str:
    """Return the first few of many in one line.

    Args:
        texts (Iterable): What is to be shown; more than the first five are
            only counted.
        count (int, optional): How many there are. Defaults to those given.
    """
    texts = [str(text) for text in texts]
    rest = (len(texts) if count is None else count) - _SHOWN
    shown = ', '.join(texts[:_SHOWN])
    return f'{shown} and {rest} more' if rest > 0 else shown
