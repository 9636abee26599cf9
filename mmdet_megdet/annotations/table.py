# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An annotation file's content as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..text import some


@dataclass(frozen=True)
class Table:
    """A file in COCO's format whose entries are all well formed.

    Ids are whole numbers, or objects.
    """

    path: str
    image_ids: np.ndarray
    file_names: list[str]
    sizes: np.ndarray  # width and height of the images, (n, 2)
    category_ids: np.ndarray
    category_names: list[Any]
    # Of the annotations:
    ids: np.ndarray
    image_of: np.ndarray  # image_id
    category_of: np.ndarray  # category_id
    boxes: np.ndarray  # left, top, width and height, (m, 4)
    areas: np.ndarray
    iscrowd: np.ndarray  # -1 where there is none
    ignored: np.ndarray  # whether ignore is set: mmdet leaves them out
    forms: np.ndarray  # a Form each; empty if masks are not looked at

    @cached_property
    def image_places(self) -> np.ndarray:
        """Each annotation's place among the images; -1 for none."""
        return _places(self.image_ids, self.image_of)

    @cached_property
    def category_places(self) -> np.ndarray:
        """Each annotation's place among the categories; -1 for none."""
        return _places(self.category_ids, self.category_of)

    def name_annotations(self, chosen: np.ndarray) -> str:
        """Return the ids of annotations, with those of their images."""
        files = dict(
            zip(self.image_ids.tolist(), self.file_names, strict=True)
        )

        def name(place: int) -> str:
            image = self.image_of[place]
            file = f', {files[image]}' if image in files else ''
            return f'id {self.ids[place]} (image {image}{file})'

        return some(map(name, chosen), 5)

    def name_images(self, chosen: np.ndarray) -> str:
        """Return the ids of images, with their files."""
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
