# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Command line of the embedded data set.

Example::

    python -m mmdet_megdet.demo_data data/shapes --train 320 --val 80
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from pycocotools import mask as mask_utils
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring')

# The palette (RGB) is also the mean colour of each class in the images.
METAINFO = dict(
    classes=CLASSES,
    palette=[
        (215, 50, 45),
        (60, 170, 70),
        (50, 95, 215),
        (235, 200, 40),
        (180, 65, 190),
    ],
)

# Fixed places in the sequence, so that every split of 16 images has both.
EMPTY_EVERY = 16
CROWD_EVERY = 8
CROWD_PLACE = 3

MAX_OBJECTS = 5
# Radius of an object as a share of the image's shorter side.
RADIUS_RANGE = (0.07, 0.24)
MIN_RADIUS = 4.0
# A shape that would leave less than this of another one in sight isn't placed.
MIN_VISIBLE = 0.5
# Coverage is sampled at this many points a pixel in each direction.
SUPERSAMPLING = 4


@dataclass
class Layer:
    """One annotated object, or one crowd of small shapes.

    Attributes:
        category (int): Index into ``CLASSES``.
        coverage (np.ndarray): Share of each pixel that the shape covers,
            (H, W), uint8, 0 to 255.
        visible (np.ndarray): Pixels at least half covered that no later
            layer hides, (H, W), bool.
        crowd (bool): Whether it is a crowd region.
    """

    category: int
    coverage: np.ndarray
    visible: np.ndarray
    crowd: bool = False


def compose(
    rng: np.random.Generator, index: int, width: int, height: int
) -> list[Layer]:
    """Lay out one image.

    Every 16th image (index 15, 31, ...) is left empty; every 8th (index 3,
    11, ...) has a crowd region below its objects. The first layer's class
    goes round with the index, so that small splits hold all classes.

    Args:
        rng (np.random.Generator): Source of all that is random.
        index (int): Number of the image within its split.
        width (int): Width in pixels.
        height (int): Height in pixels.

    Returns:
        list[Layer]: The layers from back to front.
    """
    if index % EMPTY_EVERY == EMPTY_EVERY - 1:
        return []
    layers: list[Layer] = []
    wanted = int(rng.integers(1, MAX_OBJECTS + 1))
    if index % CROWD_EVERY == CROWD_PLACE:
        category = index % len(CLASSES)
        contours = _crowd(rng, category, width, height)
        coverage = _rasterise(contours, width, height)
        layers.append(Layer(category, coverage, coverage >= 128, crowd=True))
        wanted += 1
    # A full image refuses more shapes: the number of tries is bounded.
    for _ in range(4 * MAX_OBJECTS):
        if len(layers) >= wanted:
            break
        category = int(rng.integers(len(CLASSES)))
        if not layers:
            category = index % len(CLASSES)
        contours = _single(rng, category, width, height)
        coverage = _rasterise(contours, width, height)
        mask = coverage >= 128
        if all(_stays_visible(layer, mask) for layer in layers):
            for layer in layers:
                layer.visible &= ~mask
            layers.append(Layer(category, coverage, mask))
    return layers


def _stays_visible(layer: Layer, mask: np.ndarray) -> bool:
    left = np.count_nonzero(layer.visible & ~mask)
    return left >= MIN_VISIBLE * np.count_nonzero(layer.coverage >= 128)


def _single(
    rng: np.random.Generator, category: int, width: int, height: int
) -> list[np.ndarray]:
    shorter = min(width, height)
    low, high = np.log(RADIUS_RANGE)
    radius = max(MIN_RADIUS, shorter * np.exp(rng.uniform(low, high)))
    # Up to two fifths of the radius may stick out of the image.
    margin = 0.6 * radius
    centre = (
        rng.uniform(margin, width - margin),
        rng.uniform(margin, height - margin),
    )
    return _contours(category, centre, radius, rng.uniform(0, 2 * np.pi))


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
    contours = []
    for row, column in np.ndindex(rows, columns):
        cell = np.array([column, row]) + 0.5
        centre = origin + pitch * cell + rng.uniform(-0.15, 0.15, 2) * radius
        contours += _contours(
            category, centre, radius, rng.uniform(0, 2 * np.pi)
        )
    return contours


def _contours(
    category: int, centre: tuple[float, float], radius: float, angle: float
) -> list[np.ndarray]:
    """Closed outlines, each (P, 2); a second one is the edge of a hole."""
    # Radii of the corners in turn; a polygon of 96 corners is within 0.06%
    # of the circle.
    corners = {
        'circle': [np.ones(96)],
        'square': [np.ones(4)],
        'triangle': [np.ones(3)],
        'star': [np.tile([1.0, 0.42], 5)],
        'ring': [np.ones(96), np.full(96, 0.55)],
    }[CLASSES[category]]
    contours = []
    for radii in corners:
        turn = angle + 2 * np.pi * np.arange(len(radii)) / len(radii)
        unit = np.stack([np.cos(turn), np.sin(turn)], axis=1)
        contours.append(np.asarray(centre) + radius * radii[:, None] * unit)
    return contours


def _rasterise(
    contours: list[np.ndarray], width: int, height: int
) -> np.ndarray:
    """Coverage of each pixel, (H, W), uint8; fixed point throughout."""
    scale, shift = SUPERSAMPLING, 4
    fine = np.zeros((height * scale, width * scale), np.uint8)
    # OpenCV counts from pixel centres, contours from the outer corner.
    points = [
        np.rint((scale * contour - 0.5) * 2**shift).astype(np.int32)
        for contour in contours
    ]
    cv2.fillPoly(fine, points, 255, shift=shift)
    return cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA)


SPLITS = ('train', 'val')


def make_image(
    split: str,
    index: int,
    size: tuple[int, int],
    seed: int = 0,
    vary_light: bool = False,
) -> tuple[np.ndarray, list[dict]]:
    """Make one image and its annotations, in memory.

    Args:
        split (str): ``'train'`` or ``'val'``.
        index (int): Number of the image within the split.
        size (tuple[int, int]): Width and height in pixels.
        seed (int): Seed of the data set. Defaults to 0.
        vary_light (bool): Whether to vary the light. Defaults to False.

    Returns:
        tuple[np.ndarray, list[dict]]: RGB image, (H, W, 3), uint8; COCO
        annotations, without the ids of image and annotation.
    """
    key = [seed, SPLITS.index(split), index]
    rng = np.random.default_rng([*key, 0])
    layers = compose(rng, index, *size)
    image = paint(rng, layers, *size)
    if vary_light:
        # Its own generator: the scene is the same in any light.
        image = relight(np.random.default_rng([*key, 1]), image)
    annotations = [
        {
            'category_id': layer.category + 1,
            **annotate(layer.visible, layer.crowd),
        }
        for layer in layers
    ]
    return image, annotations


GAIN_RANGE = (0.15, 1.6)
CAST_RANGE = (0.5, 1.5)
OFFSET_RANGE = (-16.0, 16.0)
NOISE_RANGE = (0.0, 8.0)


def paint(
    rng: np.random.Generator, layers: list[Layer], width: int, height: int
) -> np.ndarray:
    """Paint layers from back to front on a greyish, textured background.

    Args:
        rng (np.random.Generator): Source of all that is random.
        layers (list[Layer]): What to paint.
        width (int): Width in pixels.
        height (int): Height in pixels.

    Returns:
        np.ndarray: RGB image, (H, W, 3), uint8.
    """
    grey = rng.uniform(70, 170)
    tint = rng.uniform(-12, 12, 3)
    texture = rng.uniform(8, 28) * _texture(rng, width, height)
    image = grey + tint + texture[..., None]
    for layer in layers:
        colour = np.array(METAINFO['palette'][layer.category])
        colour = colour * rng.uniform(0.85, 1.1) + rng.uniform(-15, 15, 3)
        contrast = rng.uniform(0.1, 0.25)
        shade = 1 + contrast * _texture(rng, width, height)
        share = layer.coverage[..., None] / 255
        painted = colour * shade[..., None]
        image = (1 - share) * image + share * painted
    return _to_uint8(image)


def relight(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Photograph the image under another light.

    One gain (0.15 to 1.6), colour cast (0.5 to 1.5 per channel), offset (-16
    to 16 grey levels) and noise (standard deviation 0 to 8 grey levels) are
    drawn per image, each uniformly.

    Args:
        rng (np.random.Generator): Source of all that is random.
        image (np.ndarray): RGB image, (H, W, 3), uint8.

    Returns:
        np.ndarray: RGB image, (H, W, 3), uint8.
    """
    gain = rng.uniform(*GAIN_RANGE) * rng.uniform(*CAST_RANGE, size=3)
    offset = rng.uniform(*OFFSET_RANGE)
    noise = rng.uniform(*NOISE_RANGE) * rng.standard_normal(image.shape)
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


def annotate(mask: np.ndarray, crowd: bool = False) -> dict:
    """Describe a mask as COCO does.

    Args:
        mask (np.ndarray): The object's visible pixels, (H, W), bool; at least
            one is set.
        crowd (bool): Whether it is a crowd region. Defaults to False.

    Returns:
        dict: ``segmentation`` (polygons; a compressed RLE for a crowd),
        ``area`` (the number of pixels), ``bbox`` (x, y, width, height:
        the tight box) and ``iscrowd``.
    """
    pixels = mask.astype(np.uint8)
    if crowd:
        rle = mask_utils.encode(np.asfortranarray(pixels))
        segmentation = {
            'size': list(mask.shape),
            'counts': rle['counts'].decode('ascii'),
        }
    else:
        segmentation = polygons(pixels)
    return {
        'segmentation': segmentation,
        'area': int(pixels.sum()),
        'bbox': list(cv2.boundingRect(pixels)),
        'iscrowd': int(crowd),
    }


def polygons(mask: np.ndarray) -> list[list[int]]:
    """Trace a mask along its pixels' edges.

    pycocotools gives back the very same mask from these polygons. COCO
    polygons have no holes, so a mask with a hole is cut in two through it.

    Args:
        mask (np.ndarray): (H, W), uint8, 0 or 1; not empty.

    Returns:
        list[list[int]]: One ``[x0, y0, x1, y1, ...]`` per part.
    """
    # OpenCV's contours run through pixel centres. On the mask at double size
    # both pixels beside an edge's end map to that end: (c + 1) // 2.
    double = mask.repeat(2, axis=0).repeat(2, axis=1)
    contours, hierarchy = cv2.findContours(
        double, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE
    )
    holes = [
        contour
        for contour, (*_, parent) in zip(contours, hierarchy[0], strict=True)
        if parent >= 0
    ]
    if not holes:
        return [
            _without_repeats((contour[:, 0] + 1) // 2) for contour in contours
        ]
    left, _, width, _ = cv2.boundingRect(holes[0])
    cut = (2 * left + width) // 4
    halves = mask.copy(), mask.copy()
    halves[0][:, cut:] = 0
    halves[1][:, :cut] = 0
    return polygons(halves[0]) + polygons(halves[1])


def _without_repeats(points: np.ndarray) -> list[int]:
    new = np.any(points != np.roll(points, 1, axis=0), axis=1)
    return points[new].ravel().tolist()


# To be raised by whoever changes a pixel or an annotation.
GENERATOR = 'mmdet_megdet.demo_data'
GENERATOR_VERSION = 1

SIDE_RANGE = (32, 4096)
MAX_IMAGES = 1_000_000
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
    """Generate images of shapes in COCO format.

    The images show circles, squares, triangles, stars and rings that hide
    each other in part. Annotations describe the visible part, as COCO's do,
    and exactly: ``area`` is the number of pixels of the mask that pycocotools
    makes of ``segmentation``, ``bbox`` is its tight box. Every 8th image
    has a crowd region (RLE, ``iscrowd=1``), every 16th has no object.

    An image and its annotations depend only on the seed, the split, the
    image's number, the size and ``vary_light``; ``vary_light`` leaves the
    annotations as they are. Images are PNG: lossless, so that their pixels
    don't depend on the decoder's version.

    A split that is there already with the same parameters is kept; one with
    others, or an unfinished one, is written anew. An annotation file is
    written last and at once, so it exists only beside a complete split.

    Args:
        out_dir (str | Path): Folder of the data set; made if need be.
        train (int): Number of training images. Defaults to 320.
        val (int): Number of validation images. Defaults to 80.
        size (tuple[int, int]): Width and height in pixels, each from 32 to
            4096. Defaults to (128, 128).
        seed (int): From 0 to 2^32 - 1. Defaults to 0.
        vary_light (bool): Whether to vary the light from image to image
            (see :func:`~mmdet_megdet.demo_data.relight`). Defaults to
            False.
        console (Console, optional): Where messages and the progress bar go.
            Defaults to None: nowhere.

    Returns:
        dict[str, SplitPaths]: The paths of ``'train'`` and ``'val'``.

    Raises:
        ValueError: If an argument is out of range.
        FileExistsError: If ``out_dir`` holds images or annotations that
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
    # All of them before the first new image: an interruption must not leave
    # one split of the old data set beside one of the new.
    for split in stale:
        paths[split].annotations.unlink(missing_ok=True)
    with Progress(
        TextColumn('{task.description:>5}'),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn('images'),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        for split, info in stale.items():
            images = progress.track(range(info['images']), description=split)
            _write_split(paths[split], info, images)
    (out_dir / UNFINISHED).unlink()
    return paths


def _check(counts: dict[str, int], size: tuple[int, int], seed: int) -> None:
    for split, count in counts.items():
        if not 1 <= count <= MAX_IMAGES:
            raise ValueError(
                f'{split}={count}: the number of images must be from 1 to '
                f'{MAX_IMAGES}.'
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
    names = map(_file_name, range(info['images']))
    if not all((paths.images / name).exists() for name in names):
        return 'images are missing; writing it anew.'
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
        image, found = make_image(
            info['split'], index, size, info['seed'], info['vary_light']
        )
        _, png = cv2.imencode('.png', image[..., ::-1])
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


def main(argv: Sequence[str] | None = None) -> int:
    """Generate the data set that the command line describes.

    Args:
        argv (Sequence[str], optional): Arguments. Defaults to None: the
            process's own.

    Returns:
        int: Exit status: 0, or 1 where it can't be written.
    """
    args = _parser().parse_args(argv)
    console = Console()
    try:
        paths = generate_shapes(
            args.out,
            train=args.train,
            val=args.val,
            size=args.size,
            seed=args.seed,
            vary_light=args.vary_light,
            console=console,
        )
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    for split in paths.values():
        console.print(
            f'{split.annotations}  {split.images}/',
            highlight=False,
            soft_wrap=True,
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m mmdet_megdet.demo_data',
        description='Generate images of shapes in COCO format.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('out', help='folder of the data set')
    parser.add_argument(
        '--train', type=int, default=320, help='number of training images'
    )
    parser.add_argument(
        '--val', type=int, default=80, help='number of validation images'
    )
    parser.add_argument(
        '--size',
        type=_size,
        default='128',
        metavar='SIDE|WxH',
        help='size in pixels: 128 or 160x128',
    )
    parser.add_argument('--seed', type=int, default=0, help='random seed')
    parser.add_argument(
        '--vary-light',
        action='store_true',
        help='vary gain, colour cast, offset and noise from image to image',
    )
    return parser


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r'(\d+)(?:x(\d+))?', text)
    if not match:
        raise argparse.ArgumentTypeError(
            f'{text!r} is neither a side such as 128 nor a width and height '
            'such as 160x128'
        )
    width, height = match.groups()
    return int(width), int(height or width)


if __name__ == '__main__':
    sys.exit(main())
