# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A data set's images: there, whole, of the size that the file says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .report import Finding, failure, passed, reason, some, warning

# Reading headers waits for the disk, not for the processor.
_THREADS = 8


class Listed(NamedTuple):
    """An image of an annotation file: id, file, width and height."""

    key: Any
    file: str
    size: tuple[float, float]


def check_image_files(
    name: str, data_set: Any, most: int | None, decode: bool
) -> Iterator[Finding]:
    """Read the images and hold them against the annotation file.

    Args:
        name (str): For what the data set is used.
        data_set (Judged): The data set.
        most (int, optional): How many to read. None: all.
        decode (bool): Whether to decode them wholly.
    """
    from PIL import Image
    from rich.console import Console
    from rich.progress import track

    check = f'images ({name})'
    if data_set.use.reader is None:
        yield warning(
            check,
            'not checked: the pipeline has no LoadImageFromFile',
            'See for yourself whether it finds and reads the images.',
        )
        return
    images = [
        Listed(*entry)
        for entry in zip(
            data_set.ids,
            data_set.file_names,
            map(tuple, data_set.sizes.tolist()),
            strict=True,
        )
    ]
    chosen = _spread(images, most)
    found: dict[str, list[str]] = {kind: [] for kind in _REMEDIES}
    # PIL warns of large images, which OpenCV decodes.
    warnings.simplefilter('ignore', Image.DecompressionBombWarning)

    def look(image: Listed) -> tuple[str, str] | None:
        path = Path(data_set.use.folder, image.file)
        return _fault(path, image, data_set.use.reader, decode)

    with ThreadPoolExecutor(_THREADS) as pool:
        for fault in track(
            pool.map(look, chosen),
            total=len(chosen),
            description=f'Reading images ({name})',
            console=Console(stderr=True),
            transient=True,
        ):
            if fault is not None:
                found[fault[0]].append(fault[1])
    for kind, names in found.items():
        if names:
            finding = warning if kind == _TURNED else failure
            yield finding(
                check,
                f'{len(names)} of {len(chosen)} {kind}: {some(names)}',
                _REMEDIES[kind],
            )
    if chosen and not any(n for k, n in found.items() if k != _TURNED):
        how = 'decode' if decode else 'have the size that the file says'
        yield passed(
            check,
            f'{len(chosen)} of {len(images)} read, all {how} '
            f'({data_set.use.folder})',
        )


_TURNED = 'are turned by an EXIF orientation that leaves their size'
_REMEDIES = {
    'are not there': 'Complete the folder, or look at data_prefix.img: '
    'file_name in the annotation file is relative to it.',
    'cannot be read': 'Copy or download them again; the training would stop '
    'at them.',
    'differ in size from the annotation file': 'Boxes and masks of these '
    'images are off: use the images that the file was made for, or let the '
    "pipeline read them without turning (LoadImageFromFile's "
    "color_type='color_ignore_orientation').",
    _TURNED: 'Draw the boxes of one: they lie right only if they were made '
    'for the turned image.',
}


def _spread(images: list[Listed], most: int | None) -> list[Listed]:
    """At most this many, evenly spread."""
    if most is None or most >= len(images):
        return images
    return [images[i * len(images) // most] for i in range(most)]


def _fault(
    path: Path, image: Listed, reader: Any, decode: bool
) -> tuple[str, str] | None:
    """What is wrong with an image: the kind, and its name with details."""
    from mmdet_megdet.faults.data import is_cut_off, other_size
    from mmdet_megdet.runtime.image_size import (
        decoded_size,
        is_turned_in_place,
        size_when_decoded,
    )

    missing, unreadable, size, turned = _REMEDIES
    name = f'{image.file} (id {image.key})'
    if not path.is_file():
        return missing, name
    try:
        if is_cut_off(path):
            text = f'{name}: cut off, after {path.stat().st_size} bytes'
            return unreadable, text
        look = decoded_size if decode else size_when_decoded
        different = other_size(look(path, *reader), image.size)
        if different is not None:
            return size, f'{name}: {different}'
        return (turned, name) if is_turned_in_place(path, *reader) else None
    except Exception as error:
        return unreadable, f'{name}: {reason(error)}'
