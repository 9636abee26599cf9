# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A generated data set in COCO format: circles, squares, triangles, ...

Objects hide each other in part. Annotations describe the visible part exactly:
``area`` is the number of pixels of the mask that pycocotools makes of
``segmentation``, ``bbox`` is its tight box. Every 8th image has a crowd
region (RLE, ``iscrowd=1``), every 16th has no object.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from pycocotools import mask as mask_utils

from .errors import ConfigError, DataError, MegDetError

COLOURS = dict(  # RGB
    circle=(215, 50, 45),
    square=(60, 170, 70),
    triangle=(50, 95, 215),
    star=(235, 200, 40),
    ring=(180, 65, 190),
)
CLASSES = tuple(COLOURS)
METAINFO = dict(classes=CLASSES, palette=list(COLOURS.values()))
SPLITS = ('train', 'val')

EMPTY_EVERY, CROWD_EVERY, CROWD_PLACE = 16, 8, 3  # images
MAX_OBJECTS = 5
# Radius of an object as a share of the image's shorter side.
RADIUS_RANGE = (0.07, 0.24)
MIN_RADIUS = 4.0
MIN_VISIBLE = 0.5  # of a shape, or none is placed in front of it
SUPERSAMPLING = 4  # points a pixel in each direction

# In annotation files, and never changed: by it a data set is known as ours.
GENERATOR = 'mmdet_megdet.datasets.shapes'
# To be raised by whoever changes a pixel or an annotation.
GENERATOR_VERSION = 1
SIDE_RANGE = (32, 4096)
# There while the data set is being written, and after an interruption.
UNFINISHED = '.shapes-unfinished'


class SplitPaths(NamedTuple):
    """The paths of a split: its COCO file, and the folder of its images."""

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


def make_image(
    split: str,
    index: int,
    size: tuple[int, int],
    seed: int = 0,
    vary_light: bool = False,
) -> tuple[np.ndarray, list[dict]]:
    """Make image number ``index`` of a split, and its annotations.

    Returns:
        tuple: RGB image, (H, W, 3), uint8; COCO annotations, without ids.
    """
    key = [seed, SPLITS.index(split), index]
    rng = np.random.default_rng([*key, 0])
    layers = _compose(rng, index, *size)
    image = _paint(rng, layers, *size)
    if vary_light:
        # Its own generator: the scene is the same in any light.
        image = _relight(np.random.default_rng([*key, 1]), image)
    return image, [
        dict(
            category_id=layer.category + 1,
            **_annotate(layer.visible, layer.crowd),
        )
        for layer in layers
    ]


@dataclass
class Layer:
    """One annotated object, or one crowd of small shapes."""

    category: int  # index into CLASSES
    coverage: np.ndarray  # of each pixel by the shape, (H, W), 0 to 255
    visible: np.ndarray  # pixels half covered that no later layer hides
    crowd: bool = False

    def stays_visible(self, mask: np.ndarray) -> bool:
        """Return whether enough is left in sight with ``mask`` in front."""
        left = (self.visible & ~mask).sum()
        return bool(left >= MIN_VISIBLE * (self.coverage >= 128).sum())


def _compose(
    rng: np.random.Generator, index: int, width: int, height: int
) -> list[Layer]:
    """Lay out one image: its layers from back to front.

    The first layer's class goes round with the index, so that small splits
    hold all classes.
    """
    if index % EMPTY_EVERY == EMPTY_EVERY - 1:
        return []
    layers: list[Layer] = []
    wanted = int(rng.integers(1, MAX_OBJECTS + 1))
    if index % CROWD_EVERY == CROWD_PLACE:
        category = index % len(CLASSES)
        outlines = _crowd(rng, category, width, height)
        coverage = _rasterise(outlines, width, height)
        layers.append(Layer(category, coverage, coverage >= 128, crowd=True))
        wanted += 1
    # A full image refuses more shapes: the number of tries is bounded.
    for _ in range(4 * MAX_OBJECTS):
        if len(layers) >= wanted:
            break
        category = int(rng.integers(len(CLASSES)))
        if not layers:
            category = index % len(CLASSES)
        outlines = _object(rng, category, width, height)
        coverage = _rasterise(outlines, width, height)
        mask = coverage >= 128
        if all(layer.stays_visible(mask) for layer in layers):
            for layer in layers:
                layer.visible &= ~mask
            layers.append(Layer(category, coverage, mask))
    return layers


def _object(
    rng: np.random.Generator, category: int, width: int, height: int
) -> list[np.ndarray]:
    low, high = np.log(RADIUS_RANGE)
    radius = min(width, height) * np.exp(rng.uniform(low, high))
    radius = max(MIN_RADIUS, radius)
    # Up to two fifths of the radius may stick out of the image.
    margin = 0.6 * radius
    x = rng.uniform(margin, width - margin)
    y = rng.uniform(margin, height - margin)
    return _contours(category, (x, y), radius, rng.uniform(0, 2 * np.pi))


def _crowd(
    rng: np.random.Generator, category: int, width: int, height: int
) -> list[np.ndarray]:
    """Small shapes of one class on a jittered grid, clear of each other."""
    radius = max(MIN_RADIUS, 0.04 * min(width, height))
    pitch = 2.7 * radius
    columns, rows = (
        min(int(rng.integers(3, 6)), int(side // pitch))
        for side in (width, height)
    )
    origin = (
        rng.uniform(0, width - columns * pitch),
        rng.uniform(0, height - rows * pitch),
    )
    outlines = []
    for row, column in np.ndindex(rows, columns):
        cell = np.array([column, row]) + 0.5
        centre = origin + pitch * cell + rng.uniform(-0.15, 0.15, 2) * radius
        angle = rng.uniform(0, 2 * np.pi)
        outlines += _contours(category, centre, radius, angle)
    return outlines


def _contours(
    category: int,
    centre: Sequence[float] | np.ndarray,
    radius: float,
    angle: float,
) -> list[np.ndarray]:
    """Return a shape's outlines, each (P, 2); a second one bounds a hole."""
    # Radii of the corners in turn; 96 of them make a circle.
    corners = {
        'circle': [np.ones(96)],
        'square': [np.ones(4)],
        'triangle': [np.ones(3)],
        'star': [np.tile([1.0, 0.42], 5)],
        'ring': [np.ones(96), np.full(96, 0.55)],
    }[CLASSES[category]]
    outlines = []
    for radii in corners:
        turn = angle + 2 * np.pi * np.arange(len(radii)) / len(radii)
        unit = np.stack([np.cos(turn), np.sin(turn)], axis=1)
        outlines.append(np.asarray(centre) + radius * radii[:, None] * unit)
    return outlines


def _rasterise(
    outlines: list[np.ndarray], width: int, height: int
) -> np.ndarray:
    """Return the coverage of each pixel, (H, W), uint8."""
    scale, shift = SUPERSAMPLING, 4
    fine = np.zeros((height * scale, width * scale), np.uint8)
    # From pixel centres, and in fixed point: the same on every machine.
    points = [
        np.rint((scale * outline - 0.5) * 2**shift).astype(np.int32)
        for outline in outlines
    ]
    cv2.fillPoly(fine, points, 255, shift=shift)
    return cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA)


def _paint(
    rng: np.random.Generator, layers: list[Layer], width: int, height: int
) -> np.ndarray:
    """Paint layers on a greyish, textured background: (H, W, 3), uint8."""
    grey = rng.uniform(70, 170)
    tint = rng.uniform(-12, 12, 3)
    relief = rng.uniform(8, 28) * _texture(rng, width, height)
    image = grey + tint + relief[..., None]
    for layer in layers:
        colour = np.array(METAINFO['palette'][layer.category])
        colour = colour * rng.uniform(0.85, 1.1) + rng.uniform(-15, 15, 3)
        contrast = rng.uniform(0.1, 0.25)
        shade = 1 + contrast * _texture(rng, width, height)
        share = layer.coverage[..., None] / 255
        painted = colour * shade[..., None]
        image = (1 - share) * image + share * painted
    return _to_uint8(image)


def _relight(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Photograph the image under another light, drawn uniformly."""
    gain = rng.uniform(0.15, 1.6) * rng.uniform(0.5, 1.5, size=3)
    offset = rng.uniform(-16.0, 16.0)
    noise = rng.uniform(0.0, 8.0) * rng.standard_normal(image.shape)
    return _to_uint8(gain * image + offset + noise)


def _to_uint8(image: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _texture(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Plain, slope, stripes, checks, clouds or grain: (H, W) in [-1, 1]."""
    shorter = min(width, height)
    kind = rng.choice(
        ['plain', 'slope', 'stripes', 'checks', 'clouds', 'grain']
    )
    if kind == 'plain':
        return np.zeros((height, width))
    if kind in ('clouds', 'grain'):
        cell = shorter / 6 if kind == 'clouds' else max(1, shorter / 64)
        shape = (round(height / cell), round(width / cell))
        knots = rng.integers(0, 256, shape, dtype=np.uint8)
        # The exact variant gives the same bits on every machine.
        smooth = cv2.resize(
            knots, (width, height), interpolation=cv2.INTER_LINEAR_EXACT
        )
        return smooth / 127.5 - 1
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[:height, :width]
    along = np.cos(angle) * x + np.sin(angle) * y
    across = np.cos(angle) * y - np.sin(angle) * x
    if kind == 'slope':
        return 2 * (along - along.min()) / np.ptp(along) - 1
    period = shorter * rng.uniform(0.06, 0.16)
    stripes = np.where(along % period < period / 2, 1.0, -1.0)
    if kind == 'stripes':
        return stripes
    return stripes * np.where(across % period < period / 2, 1.0, -1.0)


def _annotate(mask: np.ndarray, crowd: bool) -> dict:
    """Describe a mask, (H, W), bool, not empty, as COCO does."""
    pixels = mask.astype(np.uint8)
    segmentation: Any
    if crowd:
        segmentation = mask_utils.encode(np.asfortranarray(pixels))
        segmentation['counts'] = segmentation['counts'].decode('ascii')
    else:
        segmentation = _polygons(pixels)
    return dict(
        segmentation=segmentation,
        area=int(pixels.sum()),
        bbox=list(cv2.boundingRect(pixels)),
        iscrowd=int(crowd),
    )


def _polygons(mask: np.ndarray) -> list[list[int]]:
    """Trace a mask, (H, W), uint8, along its pixels' edges.

    COCO's polygons have no holes: a mask with one is cut in two through it.
    """
    # OpenCV's contours run through pixel centres. On the mask at double size
    # both pixels beside an edge's end map to that end: (c + 1) // 2.
    double = mask.repeat(2, axis=0).repeat(2, axis=1)
    found, hierarchy = cv2.findContours(
        double, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE
    )
    holes = [
        contour
        for contour, (*_, parent) in zip(found, hierarchy[0], strict=True)
        if parent >= 0
    ]
    if not holes:
        outlines = [(contour[:, 0] + 1) // 2 for contour in found]
        return [_without_repeats(outline) for outline in outlines]
    left, _, width, _ = cv2.boundingRect(holes[0])
    cut = (2 * left + width) // 4
    halves = mask.copy(), mask.copy()
    halves[0][:, cut:] = 0
    halves[1][:, :cut] = 0
    return _polygons(halves[0]) + _polygons(halves[1])


def _without_repeats(points: np.ndarray) -> list[int]:
    new = np.any(points != np.roll(points, 1, axis=0), axis=1)
    return points[new].ravel().tolist()


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
