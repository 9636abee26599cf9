# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An annotation file's content as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..text import some


@dataclass(frozen=True)
class Table:
    """A file in COCO's format whose entries are all well formed.

    Attributes:
        path (str): The file.
        image_ids (ndarray): Ids of the images; of whole numbers, or objects.
        file_names (list[str]): Of the images.
        sizes (ndarray): Width and height of the images, (n, 2).
        category_ids (ndarray): Ids of the categories.
        category_names (list): Names of the categories.
        ids (ndarray): Ids of the annotations.
        image_of (ndarray): Their ``image_id``.
        category_of (ndarray): Their ``category_id``.
        boxes (ndarray): Left, top, width and height, (m, 4).
        areas (ndarray): Their ``area``.
        iscrowd (ndarray): Their ``iscrowd``; -1 where there is none.
        ignored (ndarray): Whether ``ignore`` is set, which mmdet leaves out.
        forms (ndarray): A :class:`Form` each; empty if not asked for.
    """

    path: str
    image_ids: np.ndarray
    file_names: list[str]
    sizes: np.ndarray
    category_ids: np.ndarray
    category_names: list[Any]
    ids: np.ndarray
    image_of: np.ndarray
    category_of: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    iscrowd: np.ndarray
    ignored: np.ndarray
    forms: np.ndarray

    @cached_property
    def image_places(self) -> np.ndarray:
        """Each annotation's place among the images; -1 for none."""
        return _places(self.image_ids, self.image_of)

    @cached_property
    def category_places(self) -> np.ndarray:
        """Each annotation's place among the categories; -1 for none."""
        return _places(self.category_ids, self.category_of)

    def name_annotations(self, chosen: Sequence[int]) -> str:
        """Return the ids of annotations, with those of their images.

        Args:
            chosen (Sequence[int]): Places in the list of annotations.
        """
        files = dict(
            zip(self.image_ids.tolist(), self.file_names, strict=True)
        )

        def name(place: int) -> str:
            image = self.image_of[place]
            file = f', {files[image]}' if image in files else ''
            return f'id {self.ids[place]} (image {image}{file})'

        return some(map(name, chosen), 5)

    def name_images(self, chosen: Sequence[int]) -> str:
        """Return the ids of images, with their files.

        Args:
            chosen (Sequence[int]): Places in the list of images.
        """
        return some(
            (f'id {self.image_ids[i]} ({self.file_names[i]})' for i in chosen),
            5,
        )


def _places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    # Of entries with one id the last counts, as in pycocotools.
    place = {key: i for i, key in enumerate(known.tolist())}.get
    return np.fromiter(
        (place(key, -1) for key in wanted.tolist()), np.int64, len(wanted)
    )


def repeated(values: Iterable[Hashable]) -> list[Hashable]:
    """Return what occurs more than once."""
    return [value for value, n in Counter(values).items() if n > 1]
