# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The size that an image has when OpenCV has decoded it.

A header tells it, unless the file asks to be turned: then it is decoded. All
functions take LoadImageFromFile's ``color_type``.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from ..errors import DataError

Size = tuple[int, int]  # width and height
_ORIENTATION = 0x0112
_AS_IT_LIES = cv2.IMREAD_IGNORE_ORIENTATION
_FLAGS = dict(
    color=cv2.IMREAD_COLOR,
    grayscale=cv2.IMREAD_GRAYSCALE,
    unchanged=cv2.IMREAD_UNCHANGED,
    color_ignore_orientation=cv2.IMREAD_COLOR | _AS_IT_LIES,
    grayscale_ignore_orientation=cv2.IMREAD_GRAYSCALE | _AS_IT_LIES,
)
# Where EXIF or XMP is, in a PNG.
_IN_A_PNG = (b'eXIf', b'profile type exif', b'profile type xmp', b'adobe.xmp')
# OpenCV refuses more, unless OPENCV_IO_MAX_IMAGE_PIXELS says otherwise.
_MANY_PIXELS = 1 << 30


def decoded_size(path: str | Path, color_type: str = 'color') -> Size:
    """Decode an image, and return its width and height."""
    height, width = _decode(path, color_type).shape[:2]
    return width, height


def _decode(path: str | Path, color_type: str) -> np.ndarray:
    # As mmcv does, which may be what is broken where the doctor looks.
    data = np.frombuffer(Path(path).read_bytes(), np.uint8)
    image = cv2.imdecode(data, _FLAGS[color_type])
    if image is None:
        raise DataError('OpenCV makes nothing of it')
    return image


def is_turned_in_place(path: str | Path, color_type: str = 'color') -> bool:
    """Return whether decoding turns an image without changing its size.

    No size tells then whether its boxes were drawn before or after.
    """
    as_it_lies = f'{color_type}_ignore_orientation'
    if as_it_lies not in _FLAGS or _upright_size(path) is not None:
        return False
    turned, flat = _decode(path, color_type), _decode(path, as_it_lies)
    return turned.shape == flat.shape and (turned != flat).any()


def size_when_decoded(path: str | Path, color_type: str = 'color') -> Size:
    """Return what :func:`decoded_size` does, decoding only if it must."""
    size = _upright_size(path)
    if size is None or size[0] * size[1] > _MANY_PIXELS:
        return decoded_size(path, color_type)
    if not cv2.haveImageReader(str(path)):
        raise DataError('OpenCV has no decoder for it')
    return size


def _upright_size(path: str | Path) -> Size | None:
    """Return the header's size; None where the image may be turned."""
    try:
        with Image.open(path) as image:
            if image.format != 'PNG':
                turned = image.getexif().get(_ORIENTATION, 1) != 1
            else:
                # Asking PIL for a PNG's would decode the whole image.
                content = Path(path).read_bytes()
                turned = any(name in content for name in _IN_A_PNG)
            return None if turned else image.size
    except Exception:
        # A format or a size that PIL refuses, and another decoder may not.
        return None
