# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An annotation file's content as columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import numpy as np

from ..text import some


@dataclass(frozen=True)
class Table:
    """A file in COCO's format whose entries are all well formed."""

    path: str
    image_ids: np.ndarray
    file_names: list[str]
    sizes: np.ndarray  # width and height of the images, (n, 2)
    category_ids: np.ndarray
    category_names: list[str]
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
        return some(map(self._name_annotation, chosen), 5)

    def _name_annotation(self, place: int) -> str:
        image = self.image_places[place]
        file = f', {self.file_names[image]}' if image >= 0 else ''
        return f'id {self.ids[place]} (image {self.image_of[place]}{file})'


def _places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    # Of entries with one id the last counts, as in pycocotools.
    place = {key: i for i, key in enumerate(known.tolist())}.get
    places = map(place, wanted.tolist(), repeat(-1))
    return np.fromiter(places, np.int64, len(wanted))
