# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A data set's pictures: there, readable, of the size that the file says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .report import Finding, failure, passed, reason, some

_EXIF_ORIENTATION = 0x0112
# Reading headers waits for the disk, not for the processor.
_THREADS = 8


def check_pictures(
    data_set: Any, content: dict, most: int | None, decode: bool
) -> Iterator[Finding]:
    """Read the pictures and hold them against the annotation file.

    Args:
        data_set (DataSet): Whose they are.
        content (dict): The annotation file.
        most (int, optional): How many to read. None: all.
        decode (bool): Whether to decode them wholly.
    """
    from rich.console import Console
    from rich.progress import track

    check = f'pictures ({data_set.name})'
    images = [i for i in content['images'] if _named(i)]
    chosen = _spread(images, most)
    found: dict[str, list[str]] = {kind: [] for kind in _REMEDIES}

    def look(image: dict) -> tuple[str, str] | None:
        return _fault(data_set.pictures / image['file_name'], image, decode)

    with ThreadPoolExecutor(_THREADS) as pool:
        for fault in track(
            pool.map(look, chosen),
            total=len(chosen),
            description=f'Reading pictures ({data_set.name})',
            console=Console(stderr=True),
            transient=True,
        ):
            if fault is not None:
                found[fault[0]].append(fault[1])
    for kind, names in found.items():
        if names:
            yield failure(
                check,
                f'{len(names)} of {len(chosen)} {kind}: {some(names)}',
                _REMEDIES[kind],
            )
    if chosen and not any(found.values()):
        how = 'decode' if decode else 'have the size that the file says'
        yield passed(
            check,
            f'{len(chosen)} of {len(images)} read, all {how} '
            f'({data_set.pictures})',
        )


_REMEDIES = {
    'are not there': 'Complete the folder, or look at data_prefix.img: '
    'file_name in the annotation file is relative to it.',
    'cannot be read': 'Copy or download them again; the training would stop '
    'at them.',
    'differ in size from the annotation file': 'Boxes and masks of these '
    'pictures are off: use the pictures that the file was made for.',
}


def _named(image: Any) -> bool:
    return isinstance(image, dict) and 'file_name' in image


def _spread(images: list, most: int | None) -> list:
    """At most this many, evenly spread."""
    if most is None or most >= len(images):
        return images
    return [images[i * len(images) // most] for i in range(most)]


def _fault(path: Path, image: dict, decode: bool) -> tuple[str, str] | None:
    """What is wrong with a picture: the kind, and its name with details."""
    from PIL import Image

    missing, unreadable, size = _REMEDIES
    name = f'{image["file_name"]} (id {image.get("id")})'
    if not path.is_file():
        return missing, name
    try:
        with Image.open(path) as picture:
            actual = picture.size
            # Asking a PNG for it would decode the whole picture.
            turned = (
                picture.format in ('JPEG', 'MPO')
                and picture.getexif().get(_EXIF_ORIENTATION, 1) >= 5
            )
            if decode:
                picture.load()
    except Exception as error:
        return unreadable, f'{name}: {reason(error)}'
    said = image.get('width'), image.get('height')
    # mmcv turns a picture as its EXIF entry says, after which it has the
    # size that the training sees.
    if turned:
        actual = actual[::-1]
    if actual != said:
        note = ', turned by EXIF' if turned else ''
        return (
            size,
            f'{name}: {actual[0]}x{actual[1]}{note}, not {said[0]}x{said[1]}',
        )
    return None
