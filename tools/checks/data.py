# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A config's data sets: the annotation files, the folders, the images."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mmdet_megdet.annotations import Judged, Judgement
from mmdet_megdet.faults.data import (
    is_cut_off,
    is_refused,
    mode_of,
    other_size,
)
from mmdet_megdet.runtime.image_size import (
    decoded_size,
    is_turned_in_place,
    size_when_decoded,
)
from mmdet_megdet.text import some

from .report import FAIL, WARN, Finding, failure, passed, reason, warning

# Reading headers waits for the disk, not for the processor.
_THREADS = 8
_TURNED = 'are turned by an EXIF orientation that leaves their size'
# What may be wrong with images, and what to do about it.
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


def check_annotations(cfg: Any, judgement: Judgement) -> Iterator[Finding]:
    """Return verdicts as lines: FAIL if training does not start with it."""
    mode = mode_of(cfg)
    for verdict in judgement.verdicts:
        check = f'annotations ({", ".join(verdict.roles)})'
        text, remedy = verdict.text, verdict.remedy
        if verdict.level == 'sound':
            yield passed(check, text)
        elif not is_refused(verdict, mode):
            yield warning(check, text, remedy)
        elif verdict.roles == ('test',):
            yield warning(check, f'{text} tools/test.py refuses it.', remedy)
        else:
            yield failure(check, text, remedy)


def classes(judgement: Judgement) -> tuple[str, ...]:
    """Return the training data set's classes; none where not known."""
    uses = (one.use for one in judgement.data_sets)
    return next((use.classes for use in uses if use.role == 'train'), ())


def check_images(
    judgement: Judgement, most: int | None, decode: bool
) -> Iterator[Finding]:
    """Read the images of all data sets, at most so many, each file once."""
    found: dict[tuple, list[Judged]] = {}
    for one in judgement.data_sets:
        key = one.use.path, one.use.folder, one.use.color_type, len(one.ids)
        found.setdefault(key, []).append(one)
    for same in found.values():
        roles = list(dict.fromkeys(one.use.role for one in same))
        check = f'images ({", ".join(roles)})'
        for finding in _check_images_of(check, same[0], most, decode):
            # Training does not need the images of a test.
            if roles == ['test'] and finding.level == FAIL:
                finding = finding._replace(level=WARN)
            yield finding


def _check_images_of(
    check: str, data_set: Judged, most: int | None, decode: bool
) -> Iterator[Finding]:
    from PIL import Image
    from rich.console import Console
    from rich.progress import track

    folder = data_set.use.folder
    if data_set.use.color_type is None or '://' in folder:
        yield warning(
            check,
            'not checked: the pipeline has no LoadImageFromFile that decodes '
            f'by OpenCV, or {folder} is not on a disk',
            'See for yourself whether it finds and reads the images.',
        )
        return
    if not Path(folder).is_dir():
        yield failure(
            check,
            f'there is no folder {folder}',
            "Set the data set's place: data_root, data_prefix, or the "
            'environment variable that the config names.',
        )
        return
    number = len(data_set.ids)
    chosen = range(number)
    if most is not None and most < number:
        chosen = [i * number // most for i in range(most)]
    found: dict[str, list[str]] = {kind: [] for kind in _REMEDIES}
    # PIL warns of large images, which OpenCV decodes.
    warnings.simplefilter('ignore', Image.DecompressionBombWarning)
    with ThreadPoolExecutor(_THREADS) as pool:
        for fault in track(
            pool.map(lambda place: _fault(data_set, place, decode), chosen),
            total=len(chosen),
            description=f'Reading {check}',
            console=Console(stderr=True),
            transient=True,
        ):
            if fault is not None:
                found[fault[0]].append(fault[1])
    for kind, names in found.items():
        if names:
            yield (warning if kind == _TURNED else failure)(
                check,
                f'{len(names)} of {len(chosen)} {kind}: {some(names)}',
                _REMEDIES[kind],
            )
    if chosen and not any(n for k, n in found.items() if k != _TURNED):
        how = 'decode' if decode else 'have the size that the file says'
        text = f'{len(chosen)} of {number} read, all {how} ({folder})'
        yield passed(check, text)


def _fault(
    data_set: Judged, place: int, decode: bool
) -> tuple[str, str] | None:
    """Return what is wrong with an image: the kind, its name and details."""
    missing, unreadable, size, turned = _REMEDIES
    file, color = data_set.file_names[place], data_set.use.color_type
    path = Path(data_set.use.folder, file)
    name = f'{file} (id {data_set.ids[place]})'
    if not path.is_file():
        return missing, name
    try:
        if is_cut_off(path):
            text = f'{name}: cut off, after {path.stat().st_size} bytes'
            return unreadable, text
        look = decoded_size if decode else size_when_decoded
        listed = tuple(data_set.sizes[place].tolist())
        different = other_size(look(path, color), listed)
        if different is not None:
            return size, f'{name}: {different}'
        return (turned, name) if is_turned_in_place(path, color) else None
    except Exception as error:
        return unreadable, f'{name}: {reason(error)}'
