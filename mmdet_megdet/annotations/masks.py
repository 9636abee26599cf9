# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Forms of a segmentation: what LoadAnnotations and pycocotools take."""

from __future__ import annotations

from numbers import Real
from typing import Any

from .table import Form

# Three points.
_LEAST = 6


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
