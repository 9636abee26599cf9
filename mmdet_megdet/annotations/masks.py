# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Forms of a segmentation: what LoadAnnotations and pycocotools take."""

from __future__ import annotations

import re
from functools import lru_cache
from numbers import Real
from typing import Any

from .table import Form

# Three points.
_LEAST = 6
# What numbers are written with; the rest of polygons are brackets and commas.
_NUMBERS = b'0123456789+-.eE \t\r\n'
_POLYGONS = re.compile(rb'\[\[,*\](,\[,*\])*\]')


def form_of_polygons(text: bytes) -> Form | None:
    """Return what mmdet makes of polygons, without making numbers of them.

    Args:
        text (bytes): A segmentation as sound JSON.

    Returns:
        Form, optional: None for what is not a list of lists of numbers.
    """
    return _form_of_skeleton(text.translate(None, _NUMBERS))


# A file has few: one for each number of points.
@lru_cache(maxsize=1024)
def _form_of_skeleton(skeleton: bytes) -> Form | None:
    if not _POLYGONS.fullmatch(skeleton):
        return None
    for commas in skeleton[2:-2].split(b'],['):
        count = len(commas) + 1
        if count >= _LEAST and count % 2 == 0:
            return Form.POLYGONS
    return Form.SHORT


def form_of(segmentation: Any, width: float, height: float) -> Form:
    """Return what mmdet makes of a segmentation.

    Args:
        segmentation (Any): As in the file.
        width (float): Of its image.
        height (float): Of its image.
    """
    if not segmentation:
        return Form.NONE
    if isinstance(segmentation, dict):
        return _form_of_rle(segmentation, width, height)
    if not isinstance(segmentation, list):
        return Form.MALFORMED
    whole = False
    for polygon in segmentation:
        if not isinstance(polygon, list):
            return Form.MALFORMED
        if len(polygon) % 2 or len(polygon) < _LEAST:
            continue
        try:
            # Numbers alone add up; NaN and infinity do not to themselves.
            total = sum(polygon)
        except TypeError:
            return Form.MALFORMED
        if not isinstance(total, Real) or total - total != 0:
            return Form.MALFORMED
        whole = True
    return Form.POLYGONS if whole else Form.SHORT


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
