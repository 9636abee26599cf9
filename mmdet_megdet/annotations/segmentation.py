# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Forms of a segmentation: what LoadAnnotations and pycocotools take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from numbers import Real
from typing import Any

import msgspec

_LEAST = 6  # numbers of three points
# What numbers are written with; the rest of polygons are brackets and commas.
_NUMBERS = b'0123456789+-.eE \t\r\n'
_POLYGONS = re.compile(rb'\[\[,*\](,\[,*\])*\]')


class Form(IntEnum):
    """What mmdet makes of an annotation's segmentation."""

    GOOD = 0  # polygons, or RLE of the image's size
    SHORT = 1  # no polygon with three points and whole pairs
    BAD = 2


def forms_of_json(
    annotations: Sequence[Any], size_of: Mapping[Any, tuple[float, float]]
) -> list[Form]:
    """Return the forms of segmentations as they stand in a file."""
    # At once, which is faster. JSON has no byte of zero.
    joined = b'\0'.join([a.segmentation for a in annotations])
    skeletons = joined.translate(None, _NUMBERS).split(b'\0')
    forms = []
    for a, skeleton in zip(annotations, skeletons, strict=True):
        form = _form_of_skeleton(skeleton)
        if form is None:
            size = size_of.get(a.image_id, (0, 0))
            form = form_of(msgspec.json.decode(a.segmentation), *size)
        forms.append(form)
    return forms


# A file has few: one for each number of points.
@lru_cache(maxsize=1024)
def _form_of_skeleton(skeleton: bytes) -> Form | None:
    """Return the form of lists of numbers; None for all else."""
    if not _POLYGONS.fullmatch(skeleton):
        return None
    parts = skeleton[2:-2].split(b'],[')
    return _form_of_lengths([part.count(b',') + 1 for part in parts])


def _form_of_lengths(lengths: list[int]) -> Form:
    whole = any(n >= _LEAST and n % 2 == 0 for n in lengths)
    return Form.GOOD if whole else Form.SHORT


def form_of(segmentation: Any, width: float, height: float) -> Form:
    """Return the form of a segmentation in an image of a size."""
    match segmentation:
        case [_, *_] if all(map(_is_polygon, segmentation)):
            return _form_of_lengths([len(polygon) for polygon in segmentation])
        case {'size': [h, w], 'counts': list() | str() as counts} if (
            h == height and w == width
        ):
            if isinstance(counts, str) or (
                all(isinstance(n, int) and n >= 0 for n in counts)
                and sum(counts) == h * w
            ):
                return Form.GOOD
    return Form.BAD


def _is_polygon(polygon: Any) -> bool:
    # NaN and infinity do not add up to themselves.
    return isinstance(polygon, list) and all(
        isinstance(n, Real) and n - n == 0 for n in polygon
    )
