# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The size that an image has when a pipeline has decoded it.

A header tells it, unless the file asks to be turned: which formats a decoder
turns, by which entry and with which flag, differs between OpenCV, its
versions, and PIL. A file that may ask for it, or that PIL does not take, is
decoded by the pipeline's own decoder.
"""

from __future__ import annotations

import struct
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from ..errors import DataError

_ORIENTATION = 0x0112
_FLAGS = dict(
    color=cv2.IMREAD_COLOR,
    grayscale=cv2.IMREAD_GRAYSCALE,
    unchanged=cv2.IMREAD_UNCHANGED,
    color_ignore_orientation=cv2.IMREAD_IGNORE_ORIENTATION | cv2.IMREAD_COLOR,
    grayscale_ignore_orientation=(
        cv2.IMREAD_IGNORE_ORIENTATION | cv2.IMREAD_GRAYSCALE
    ),
)
_TURNING = ('color', 'grayscale')
# OpenCV refuses more, unless OPENCV_IO_MAX_IMAGE_PIXELS says otherwise.
_MANY_PIXELS = 1 << 30


def decoded_size(
    path: str | Path, color_type: str = 'color', backend: str | None = 'cv2'
) -> tuple[int, int]:
    """Decode an image as LoadImageFromFile does, and return its size.

    Args:
        path (str or Path): The image.
        color_type (str): LoadImageFromFile's option.
        backend (str, optional): Its ``imdecode_backend``.

    Returns:
        tuple[int, int]: Width and height.

    Raises:
        DataError: If the decoder makes nothing of it.
    """
    height, width = _decode(path, color_type, backend).shape[:2]
    return width, height


def _decode(
    path: str | Path, color_type: str, backend: str | None
) -> np.ndarray:
    content = Path(path).read_bytes()
    if backend == 'cv2':
        # As mmcv does, which may be what is broken where the doctor looks.
        data = np.frombuffer(content, np.uint8)
        image = cv2.imdecode(data, _FLAGS[color_type])
    else:
        import mmcv

        image = mmcv.imfrombytes(content, flag=color_type, backend=backend)
    if image is None:
        raise DataError(f'the decoder {backend!r} makes nothing of it')
    return image


def is_turned_in_place(
    path: str | Path, color_type: str = 'color', backend: str | None = 'cv2'
) -> bool:
    """Return whether decoding turns an image without changing its size.

    So it is with a square one, or one turned by 180 degrees or mirrored: no
    size tells whether its boxes were drawn before or after. Arguments as of
    :func:`decoded_size`.
    """
    if color_type not in _TURNING or backend not in ('cv2', 'pillow', None):
        return False
    try:
        with Image.open(path) as image:
            may_turn, size = _may_turn(path, image), image.size
    except Exception:
        return False
    if not may_turn or size != size_when_decoded(path, color_type, backend):
        return False
    turned = _decode(path, color_type, backend)
    as_it_lies = _decode(path, f'{color_type}_ignore_orientation', backend)
    return turned.shape == as_it_lies.shape and (turned != as_it_lies).any()


def size_when_decoded(
    path: str | Path, color_type: str = 'color', backend: str | None = 'cv2'
) -> tuple[int, int]:
    """Return what :func:`decoded_size` does, decoding only if it must."""
    size = None
    try:
        with Image.open(path) as image:
            if not _may_turn(path, image):
                size = image.size
    except Exception:
        # A format or a size that PIL refuses, and another decoder may not.
        size = None
    if size is None or size[0] * size[1] > _MANY_PIXELS:
        return decoded_size(path, color_type, backend)
    if backend == 'cv2' and not cv2.haveImageReader(str(path)):
        raise DataError('OpenCV has no decoder for it')
    return size


def _may_turn(path: str | Path, image: Image.Image) -> bool:
    """Return whether a file may hold an orientation other than upright."""
    if image.format != 'PNG':
        return image.getexif().get(_ORIENTATION, 1) != 1
    # Asking PIL for a PNG's would decode the whole image.
    named = any('exif' in str(k) or 'xmp' in str(k) for k in image.info)
    return named or _has_exif_chunk(path)


def _has_exif_chunk(path: str | Path) -> bool:
    """Return whether a PNG has EXIF, which may stand behind the image."""
    with open(path, 'rb') as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack('>I4s', head)
            if kind in (b'eXIf', b'IEND'):
                return kind == b'eXIf'
            file.seek(length + 4, 1)
    return False
