# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Forms of a segmentation: what LoadAnnotations and pycocotools take."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from numbers import Real
from typing import Any

# Three points.
_LEAST = 6
# What numbers are written with; the rest of polygons are brackets and commas.
_NUMBERS = b'0123456789+-.eE \t\r\n'
_POLYGONS = re.compile(rb'\[\[,*\](,\[,*\])*\]')


class Form(IntEnum):
    """What mmdet makes of an annotation's segmentation."""

    NONE = 0  # not there, or empty
    POLYGONS = 1
    SHORT = 2  # no polygon with three points and whole pairs
    RLE = 3
    OTHER_SIZE = 4  # RLE of an image of another size
    MALFORMED = 5


def form_of_polygons(text: bytes) -> Form | None:
    """Return the form of lists of numbers as JSON; None for all else."""
    return _form_of_skeleton(text.translate(None, _NUMBERS))


# A file has few: one for each number of points.
@lru_cache(maxsize=1024)
def _form_of_skeleton(skeleton: bytes) -> Form | None:
    if not _POLYGONS.fullmatch(skeleton):
        return None
    lengths = [s.count(b',') + 1 for s in skeleton[2:-2].split(b'],[')]
    whole = any(n >= _LEAST and n % 2 == 0 for n in lengths)
    return Form.POLYGONS if whole else Form.SHORT


def form_of(segmentation: Any, width: float, height: float) -> Form:
    """Return the form of a segmentation."""
    if not segmentation:
        return Form.NONE
    if isinstance(segmentation, dict):
        return _form_of_rle(segmentation, width, height)
    if not isinstance(segmentation, list) or not all(
        isinstance(polygon, list) for polygon in segmentation
    ):
        return Form.MALFORMED
    whole = [p for p in segmentation if len(p) >= _LEAST and len(p) % 2 == 0]
    if not all(map(_is_finite, whole)):
        return Form.MALFORMED
    return Form.POLYGONS if whole else Form.SHORT


def _is_finite(polygon: list) -> bool:
    try:
        # Numbers alone add up; NaN and infinity do not to themselves.
        total = sum(polygon)
    except TypeError:
        return False
    return isinstance(total, Real) and total - total == 0


def _form_of_rle(rle: dict, width: float, height: float) -> Form:
    size, counts = rle.get('size'), rle.get('counts')
    if not isinstance(size, list) or not isinstance(counts, list | str):
        return Form.MALFORMED
    if isinstance(counts, list):
        if not all(isinstance(n, int) and n >= 0 for n in counts):
            return Form.MALFORMED
        if len(size) == 2 and sum(counts) != size[0] * size[1]:
            return Form.MALFORMED
    return Form.RLE if size == [height, width] else Form.OTHER_SIZE
