# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Writing the generated data set to disk.

Layout::

    OUT/annotations/instances_train.json
    OUT/annotations/instances_val.json
    OUT/images/train/000000.png ...
    OUT/images/val/000000.png ...
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from .picture import SPLITS, make_picture
from .scene import CLASSES

# To be raised by whoever changes a pixel or an annotation.
GENERATOR = 'mmdet_megdet.datasets.shapes'
GENERATOR_VERSION = 1

SIDE_RANGE = (32, 4096)
MAX_PICTURES = 1_000_000
# There while the data set is being written, and after an interruption.
UNFINISHED = '.shapes-unfinished'


class SplitPaths(NamedTuple):
    """Where a split lies.

    Attributes:
        annotations (Path): The COCO annotation file.
        images (Path): The folder that its ``file_name`` entries refer to.
    """

    annotations: Path
    images: Path


def generate_shapes(
    out_dir: str | Path,
    train: int = 320,
    val: int = 80,
    size: tuple[int, int] = (128, 128),
    seed: int = 0,
    vary_light: bool = False,
    console: Console | None = None,
) -> dict[str, SplitPaths]:
    """Generate pictures of shapes in COCO format.

    The pictures show circles, squares, triangles, stars and rings that hide
    each other in part. Annotations describe the visible part, as COCO's do,
    and exactly: ``area`` is the number of pixels of the mask that pycocotools
    makes of ``segmentation``, ``bbox`` is its tight box. Every 8th picture
    has a crowd region (RLE, ``iscrowd=1``), every 16th has no object.

    A picture and its annotations depend only on the seed, the split, the
    picture's number, the size and ``vary_light``; ``vary_light`` leaves the
    annotations as they are. Pictures are PNG: lossless, so that their pixels
    don't depend on the decoder's version.

    A split that is there already with the same parameters is kept; one with
    others, or an unfinished one, is written anew. An annotation file is
    written last and at once, so it exists only beside a complete split.

    Args:
        out_dir (str | Path): Folder of the data set; made if need be.
        train (int): Number of training pictures. Defaults to 320.
        val (int): Number of validation pictures. Defaults to 80.
        size (tuple[int, int]): Width and height in pixels, each from 32 to
            4096. Defaults to (128, 128).
        seed (int): From 0 to 2^32 - 1. Defaults to 0.
        vary_light (bool): Whether to vary the light from picture to picture
            (see :func:`~mmdet_megdet.datasets.drawing.relight`). Defaults to
            False.
        console (Console, optional): Where messages and the progress bar go.
            Defaults to None: nowhere.

    Returns:
        dict[str, SplitPaths]: The paths of ``'train'`` and ``'val'``.

    Raises:
        ValueError: If an argument is out of range.
        FileExistsError: If ``out_dir`` holds pictures or annotations that
            aren't this generator's.
    """
    counts = {'train': train, 'val': val}
    _check(counts, size, seed)
    out_dir = Path(out_dir)
    console = console or Console(quiet=True)
    paths = {
        split: SplitPaths(
            out_dir / 'annotations' / f'instances_{split}.json',
            out_dir / 'images' / split,
        )
        for split in SPLITS
    }
    stale = {}
    for split in SPLITS:
        info = _info(split, counts[split], size, seed, vary_light)
        reason = _reason_to_write(paths[split], info, out_dir / UNFINISHED)
        if reason:
            stale[split] = info
            console.print(f'{split}: {reason}', highlight=False)
    if not stale:
        console.print(
            f'{out_dir} is complete with these parameters: kept.',
            highlight=False,
            soft_wrap=True,
        )
        return paths

    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / UNFINISHED).touch()
    # All of them before the first new picture: an interruption must not leave
    # one split of the old data set beside one of the new.
    for split in stale:
        paths[split].annotations.unlink(missing_ok=True)
    with Progress(
        TextColumn('{task.description:>5}'),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn('pictures'),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        for split, info in stale.items():
            pictures = progress.track(
                range(info['pictures']), description=split
            )
            _write_split(paths[split], info, pictures)
    (out_dir / UNFINISHED).unlink()
    return paths


def _check(counts: dict[str, int], size: tuple[int, int], seed: int) -> None:
    for split, count in counts.items():
        if not 1 <= count <= MAX_PICTURES:
            raise ValueError(
                f'{split}={count}: the number of pictures must be from 1 to '
                f'{MAX_PICTURES}.'
            )
    low, high = SIDE_RANGE
    if len(size) != 2 or not all(low <= side <= high for side in size):
        raise ValueError(
            f'size={size}: width and height must be from {low} to {high} '
            'pixels.'
        )
    if not 0 <= seed < 2**32:
        raise ValueError(f'seed={seed}: must be from 0 to {2**32 - 1}.')


def _info(
    split: str, count: int, size: tuple[int, int], seed: int, vary_light: bool
) -> dict:
    return {
        'description': 'Generated pictures of shapes',
        'generator': GENERATOR,
        'version': GENERATOR_VERSION,
        'split': split,
        'pictures': count,
        'width': size[0],
        'height': size[1],
        'seed': seed,
        'vary_light': vary_light,
    }


def _reason_to_write(
    paths: SplitPaths, info: dict, unfinished: Path
) -> str | None:
    """Say why a split has to be written, or None if it is complete."""
    if not paths.annotations.exists():
        if unfinished.exists():
            return 'an earlier run was interrupted; writing it anew.'
        if paths.images.is_dir() and any(paths.images.iterdir()):
            raise FileExistsError(
                f'{paths.images} holds files but {paths.annotations} does '
                'not exist: not a data set of this generator. Choose another '
                'folder, or remove it first.'
            )
        return 'new.'
    try:
        found = json.loads(paths.annotations.read_text())['info']
        ours = found['generator'] == GENERATOR
    except (ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise FileExistsError(
            f'{paths.annotations} was not written by this generator. Choose '
            'another folder, or remove it first.'
        )
    differences = [
        f'{key} was {found.get(key)}, is now {value}'
        for key, value in info.items()
        if found.get(key) != value
    ]
    if differences:
        return f'{"; ".join(differences)}; writing it anew.'
    names = map(_file_name, range(info['pictures']))
    if not all((paths.images / name).exists() for name in names):
        return 'pictures are missing; writing it anew.'
    return None


def _file_name(index: int) -> str:
    return f'{index:06d}.png'


def _write_split(
    paths: SplitPaths, info: dict, indices: Iterator[int]
) -> None:
    paths.annotations.parent.mkdir(parents=True, exist_ok=True)
    paths.images.mkdir(parents=True, exist_ok=True)
    for old in paths.images.glob('[0-9]' * 6 + '.png'):
        old.unlink()
    size = info['width'], info['height']
    images, annotations = [], []
    for index in indices:
        picture, found = make_picture(
            info['split'], index, size, info['seed'], info['vary_light']
        )
        _, png = cv2.imencode('.png', picture[..., ::-1])
        (paths.images / _file_name(index)).write_bytes(png)
        images.append(
            {
                'id': index,
                'file_name': _file_name(index),
                'width': size[0],
                'height': size[1],
            }
        )
        # COCO's evaluation takes an annotation with id 0 for unmatched.
        annotations += [
            {'id': number, 'image_id': index, **annotation}
            for number, annotation in enumerate(found, len(annotations) + 1)
        ]
    content = {
        'info': info,
        'licenses': [],
        'images': images,
        'annotations': annotations,
        'categories': [
            {'id': number, 'name': name, 'supercategory': 'shape'}
            for number, name in enumerate(CLASSES, 1)
        ],
    }
    partial = paths.annotations.with_suffix('.json.partial')
    partial.write_text(json.dumps(content, separators=(',', ':')))
    os.replace(partial, paths.annotations)
