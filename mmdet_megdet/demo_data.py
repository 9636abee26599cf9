# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A generated data set in COCO format: circles, squares, triangles, ...

An image and its annotations depend only on the seed, the split, the image's
number, the size and ``vary_light``, which leaves the annotations as they are.
Images are PNG, of which every decoder makes the same pixels.

Example::

    python -m mmdet_megdet.demo_data data/shapes --train 320 --val 80
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2

from .errors import ConfigError, DataError, MegDetError
from .shapes import CLASSES, SPLITS, make_image

# In annotation files, and never changed: by it a data set is known as ours.
GENERATOR = 'mmdet_megdet.datasets.shapes'
# To be raised by whoever changes a pixel or an annotation.
GENERATOR_VERSION = 1
SIDE_RANGE = (32, 4096)
# There while the data set is being written, and after an interruption.
UNFINISHED = '.shapes-unfinished'


class SplitPaths(NamedTuple):
    """Where a split lies: its COCO file, and the folder of its images."""

    annotations: Path
    images: Path


def generate_shapes(
    out_dir: str | Path,
    train: int = 320,
    val: int = 80,
    size: tuple[int, int] = (128, 128),
    seed: int = 0,
    vary_light: bool = False,
) -> dict[str, SplitPaths]:
    """Generate both splits of the data set.

    What is there already with the same parameters is kept; else both splits
    are written anew. Annotation files are written last and at once, so that
    they exist only beside a complete data set.

    Args:
        out_dir (str | Path): Folder of the data set; made if need be.
        train (int): Number of training images. Defaults to 320.
        val (int): Number of validation images. Defaults to 80.
        size (tuple[int, int]): Width and height in pixels. Defaults to
            (128, 128).
        seed (int): Of all random numbers. Defaults to 0.
        vary_light (bool): Whether to vary gain (0.15 to 1.6), colour cast
            (0.5 to 1.5), offset (-16 to 16) and noise (standard deviation 0
            to 8) from image to image. Defaults to False.

    Returns:
        dict[str, SplitPaths]: The paths of ``'train'`` and ``'val'``.

    Raises:
        ConfigError: If an argument is out of range.
        DataError: If ``out_dir`` holds another data set.
    """
    for name, value, least, most in (
        ('train', train, 1, 999_999),
        ('val', val, 1, 999_999),
        ('width', size[0], *SIDE_RANGE),
        ('height', size[1], *SIDE_RANGE),
        ('seed', seed, 0, 2**32 - 1),
    ):
        if not least <= value <= most:
            raise ConfigError(
                f'{name}={value}: must be from {least} to {most}.'
            )
    unfinished = Path(out_dir, UNFINISHED)
    infos, paths = {}, {}
    for split, count in zip(SPLITS, (train, val), strict=True):
        infos[split] = {
            'description': 'Generated images of shapes',
            'generator': GENERATOR,
            'version': GENERATOR_VERSION,
            'split': split,
            'images': count,
            'width': size[0],
            'height': size[1],
            'seed': seed,
            'vary_light': vary_light,
        }
        paths[split] = SplitPaths(
            Path(out_dir, 'annotations', f'instances_{split}.json'),
            Path(out_dir, 'images', split),
        )
    found = [_read_info(paths[split], unfinished) for split in SPLITS]
    if found == list(infos.values()):
        return paths
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    for split in SPLITS:
        paths[split].annotations.unlink(missing_ok=True)
    contents = [_write_images(paths[s].images, infos[s]) for s in SPLITS]
    for split, content in zip(SPLITS, contents, strict=True):
        annotations = paths[split].annotations
        annotations.parent.mkdir(exist_ok=True)
        partial = annotations.with_suffix('.json.partial')
        partial.write_text(json.dumps(content, separators=(',', ':')))
        os.replace(partial, annotations)
    unfinished.unlink()
    return paths


def _read_info(paths: SplitPaths, unfinished: Path) -> dict | None:
    """Return how a split was made; None if there is no complete one."""
    ours = unfinished.exists() or not paths.images.is_dir()
    info = None
    if paths.annotations.exists():
        try:
            info = json.loads(paths.annotations.read_text())['info']
            ours = info['generator'] == GENERATOR
        except (ValueError, KeyError, TypeError):
            ours = False
    if not ours:
        raise DataError(
            f'{paths.annotations} and {paths.images} were not written by this '
            'generator. Choose another folder, or remove them first.'
        )
    if info is None:
        return None
    names = map(_file_name, range(info['images']))
    complete = all((paths.images / name).exists() for name in names)
    return info if complete else None


def _file_name(index: int) -> str:
    return f'{index:06d}.png'


def _write_images(folder: Path, info: dict) -> dict:
    """Write a split's images; return what its annotation file is to hold."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob('[0-9]' * 6 + '.png'):
        old.unlink()
    split, width, height = info['split'], info['width'], info['height']
    images: list[dict] = []
    annotations: list[dict] = []
    for index in range(info['images']):
        image, found = make_image(
            split, index, (width, height), info['seed'], info['vary_light']
        )
        name = _file_name(index)
        _, png = cv2.imencode('.png', image[..., ::-1])
        (folder / name).write_bytes(png.tobytes())
        images.append(
            dict(id=index, file_name=name, width=width, height=height)
        )
        # COCO's evaluation takes an annotation with id 0 for unmatched.
        annotations += [
            {'id': number, 'image_id': index, **annotation}
            for number, annotation in enumerate(found, len(annotations) + 1)
        ]
    categories = [
        dict(id=number, name=name, supercategory='shape')
        for number, name in enumerate(CLASSES, 1)
    ]
    return dict(
        info=info,
        licenses=[],
        images=images,
        annotations=annotations,
        categories=categories,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Generate the data set of the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog='python -m mmdet_megdet.demo_data',
        description='Generate images of shapes in COCO format.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('out', help='folder of the data set')
    add('--train', type=int, default=320, help='number of training images')
    add('--val', type=int, default=80, help='number of validation images')
    add('--size', type=int, default=128, help='side of an image, in pixels')
    add('--seed', type=int, default=0, help='random seed')
    add(
        '--vary-light',
        action='store_true',
        help='vary gain, colour cast, offset and noise from image to image',
    )
    args = vars(parser.parse_args(argv))
    size = (args['size'], args.pop('size'))
    try:
        paths = generate_shapes(args.pop('out'), **args, size=size)
    except (MegDetError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    for split in paths.values():
        print(f'{split.annotations}  {split.images}/')
    return 0


if __name__ == '__main__':
    sys.exit(main())
