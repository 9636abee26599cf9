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
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as mask_utils

from .errors import ConfigError, DataError, MegDetError

# By class: its colour (RGB); and of each outline the radii of its corners in
# turn, of which 96 make a circle. A second outline bounds a hole.
SHAPES = dict(
    circle=((215, 50, 45), [np.ones(96)]),
    square=((60, 170, 70), [np.ones(4)]),
    triangle=((50, 95, 215), [np.ones(3)]),
    star=((235, 200, 40), [np.tile([1.0, 0.42], 5)]),
    ring=((180, 65, 190), [np.ones(96), np.full(96, 0.55)]),
)
CLASSES = tuple(SHAPES)
METAINFO: dict[str, Any] = dict(
    classes=CLASSES, palette=[colour for colour, _ in SHAPES.values()]
)
# To be raised by whoever changes a pixel or an annotation.
GENERATOR_VERSION = 1

MAX_OBJECTS = 5
# Radius of an object as a share of the image's shorter side; in pixels.
RADIUS_RANGE, MIN_RADIUS = (0.07, 0.24), 4.0
MIN_VISIBLE = 0.5  # of a shape, or none is placed in front of it
SUPERSAMPLING = 4  # points a pixel in each direction


def generate_shapes(
    out_dir: str | Path,
    train: int = 320,
    val: int = 80,
    size: tuple[int, int] = (128, 128),
    seed: int = 0,
    vary_light: bool = False,
) -> None:
    """Generate the data set, unless it is there with the same parameters.

    ``annotations/instances_SPLIT.json`` describes the images of
    ``images/SPLIT/``, where SPLIT is 'train' or 'val'. The folder comes to
    its name last, so that it holds a complete data set or none.

    ``size`` is width and height in pixels; ``vary_light`` photographs each
    image in a light of its own. A folder with anything else is a DataError.
    """
    if min(train, val) < 1 or seed < 0 or min(size) < 32:
        raise ConfigError(
            f'train={train}, val={val}, seed={seed}, size={size}: there must '
            'be an image of each, a seed from 0, and sides from 32 pixels.'
        )
    counts = dict(train=train, val=val)
    drawn: dict[str, Any] = dict(size=size, seed=seed, vary_light=vary_light)
    text = json.dumps(dict(version=GENERATOR_VERSION, **counts, **drawn))
    root = Path(out_dir).resolve()
    mark = root / 'shapes.json'
    if mark.exists() and mark.read_text() == text:
        return
    if root.exists() and any(root.iterdir()):
        raise DataError(
            f'{root} holds something else than the data set that is asked '
            'for. Remove it, or choose another folder.'
        )
    unfinished = Path(f'{root}.unfinished')
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / 'annotations').mkdir(parents=True)
    for split, count in counts.items():
        content = _write_images(unfinished / 'images' / split, count, **drawn)
        path = unfinished / 'annotations' / f'instances_{split}.json'
        path.write_text(json.dumps(content, separators=(',', ':')))
    (unfinished / mark.name).write_text(text)
    unfinished.replace(root)


def _write_images(
    folder: Path, count: int, size: tuple[int, int], **options: Any
) -> dict[str, list[dict]]:
    """Write a split's images; return what its annotation file is to hold."""
    folder.mkdir(parents=True)
    # Of pycocotools 2.0.9 results need an info.
    content: dict[str, Any] = dict(info={}, images=[], annotations=[])
    content['categories'] = [
        dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)
    ]
    for index in range(count):
        image, found = make_image(folder.name, index, size, **options)
        info: dict[str, Any] = dict(id=index, file_name=f'{index:06d}.png')
        content['images'].append(info | dict(width=size[0], height=size[1]))
        # Not imwrite, which says nothing of a full disk.
        _, png = cv2.imencode('.png', image[..., ::-1])
        (folder / info['file_name']).write_bytes(png.tobytes())
        for annotation in found:
            # COCO's evaluation takes an annotation with id 0 for unmatched.
            number = len(content['annotations']) + 1
            content['annotations'].append(
                dict(annotation, id=number, image_id=index)
            )
    return content


def make_image(
    split: str,
    index: int,
    size: tuple[int, int],
    seed: int = 0,
    vary_light: bool = False,
) -> tuple[np.ndarray, list[dict]]:
    """Make image number ``index`` of a split, and its annotations.

    RGB, (H, W, 3), uint8; and as COCO has them, but for their ids.
    """
    key = [seed, ('train', 'val').index(split), index]
    artist = _Artist(np.random.default_rng([*key, 0]), size)
    layers = artist.compose(index)
    image = artist.paint(layers)
    if vary_light:
        # Its own generator: the scene is the same in any light.
        image = _relight(np.random.default_rng([*key, 1]), image)
    return image, [_annotate(layer) for layer in layers]


@dataclass
class _Layer:
    """One annotated object, or one crowd of small shapes."""

    category: int  # index into CLASSES
    coverage: np.ndarray  # of each pixel by the shape, (H, W), 0 to 255
    visible: np.ndarray  # pixels half covered that no later layer hides
    crowd: bool = False

    def stays_visible(self, mask: np.ndarray) -> bool:
        """Return whether enough is left in sight with ``mask`` in front."""
        left = (self.visible & ~mask).sum()
        return bool(left >= MIN_VISIBLE * (self.coverage >= 128).sum())


class _Artist:
    """Draw one image of a size, from one stream of random numbers."""

    def __init__(
        self, rng: np.random.Generator, size: tuple[int, int]
    ) -> None:
        self.rng, self.size = rng, np.array(size)
        self.width, self.height = size

    def compose(self, index: int) -> list[_Layer]:
        """Lay out one image: its layers from back to front.

        The first layer's class goes round with the index, so that small
        splits hold all classes.
        """
        if index % 16 == 15:
            return []
        layers: list[_Layer] = []
        wanted = int(self.rng.integers(1, MAX_OBJECTS + 1))
        first = index % len(CLASSES)
        if index % 8 == 3:
            coverage = self.rasterise(self.crowd(first))
            layers.append(_Layer(first, coverage, coverage >= 128, crowd=True))
            wanted += 1
        # A full image refuses more shapes: the number of tries is bounded.
        for _ in range(4 * MAX_OBJECTS):
            if len(layers) >= wanted:
                break
            category = int(self.rng.integers(len(CLASSES)))
            if not layers:
                category = first
            coverage = self.rasterise(self.object(category))
            mask = coverage >= 128
            if all(layer.stays_visible(mask) for layer in layers):
                for layer in layers:
                    layer.visible &= ~mask
                layers.append(_Layer(category, coverage, mask))
        return layers

    def object(self, category: int) -> list[np.ndarray]:
        """Return the outlines of one shape anywhere in the image."""
        share = np.exp(self.rng.uniform(*np.log(RADIUS_RANGE)))
        radius = max(MIN_RADIUS, min(self.size) * share)
        # Up to two fifths of the radius may stick out of the image.
        margin = 0.6 * radius
        centre = self.rng.uniform(margin, self.size - margin)
        return self.outlines(category, centre, radius)

    def crowd(self, category: int) -> list[np.ndarray]:
        """Small shapes of a class on a jittered grid, clear of each other."""
        radius = max(MIN_RADIUS, 0.04 * min(self.size))
        pitch = 2.7 * radius
        grid = np.minimum(self.rng.integers(3, 6, 2), self.size // pitch)
        origin = self.rng.uniform(0, self.size - grid * pitch)
        columns, rows = grid.astype(int)
        found = []
        for row, column in np.ndindex(rows, columns):
            cell = np.array([column, row]) + 0.5
            jitter = self.rng.uniform(-0.15, 0.15, 2) * radius
            centre = origin + pitch * cell + jitter
            found += self.outlines(category, centre, radius)
        return found

    def outlines(
        self, category: int, centre: np.ndarray, radius: float
    ) -> list[np.ndarray]:
        """Return those of a shape, each (P, 2), turned at random."""
        angle = self.rng.uniform(0, 2 * np.pi)
        found = []
        for radii in SHAPES[CLASSES[category]][1]:
            turn = angle + 2 * np.pi * np.arange(len(radii)) / len(radii)
            unit = np.stack([np.cos(turn), np.sin(turn)], axis=1)
            found.append(centre + radius * radii[:, None] * unit)
        return found

    def rasterise(self, outlines: list[np.ndarray]) -> np.ndarray:
        """Return the coverage of each pixel, (H, W), uint8."""
        scale, shift = SUPERSAMPLING, 4
        fine = np.zeros((self.height * scale, self.width * scale), np.uint8)
        # From pixel centres, in fixed point: the same on every machine.
        points = [
            np.rint((scale * outline - 0.5) * 2**shift).astype(np.int32)
            for outline in outlines
        ]
        cv2.fillPoly(fine, points, 255, shift=shift)
        return self.resized(fine, cv2.INTER_AREA)

    def resized(self, array: np.ndarray, how: int) -> np.ndarray:
        """Return a map of any size in the image's."""
        return cv2.resize(array, (self.width, self.height), interpolation=how)

    def paint(self, layers: list[_Layer]) -> np.ndarray:
        """Paint layers on a greyish, textured background."""
        uniform = self.rng.uniform
        image = uniform(70, 170) + uniform(-12, 12, 3)
        image = image + (uniform(8, 28) * self.texture())[..., None]
        for layer in layers:
            colour = np.array(METAINFO['palette'][layer.category])
            colour = colour * uniform(0.85, 1.1) + uniform(-15, 15, 3)
            shade = 1 + uniform(0.1, 0.25) * self.texture()
            share = layer.coverage[..., None] / 255
            image = (1 - share) * image + share * (colour * shade[..., None])
        return _to_uint8(image)

    def texture(self) -> np.ndarray:
        """Plain, slope, stripes, checks, clouds, grain: (H, W) in [-1, 1]."""
        shorter = min(self.size)
        kind = self.rng.choice(
            ['plain', 'slope', 'stripes', 'checks', 'clouds', 'grain']
        )
        if kind == 'plain':
            return np.zeros((self.height, self.width))
        if kind in ('clouds', 'grain'):
            cell = shorter / 6 if kind == 'clouds' else max(1, shorter / 64)
            shape = (round(self.height / cell), round(self.width / cell))
            knots = self.rng.integers(0, 256, shape, dtype=np.uint8)
            # The exact variant gives the same bits on every machine.
            return self.resized(knots, cv2.INTER_LINEAR_EXACT) / 127.5 - 1
        angle = self.rng.uniform(0, 2 * np.pi)
        y, x = np.mgrid[: self.height, : self.width]
        along = np.cos(angle) * x + np.sin(angle) * y
        across = np.cos(angle) * y - np.sin(angle) * x
        if kind == 'slope':
            return 2 * (along - along.min()) / np.ptp(along) - 1
        period = shorter * self.rng.uniform(0.06, 0.16)
        stripes = np.where(along % period < period / 2, 1.0, -1.0)
        if kind == 'stripes':
            return stripes
        return stripes * np.where(across % period < period / 2, 1.0, -1.0)


def _relight(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Vary gain, colour cast, offset and noise, drawn uniformly."""
    gain = rng.uniform(0.15, 1.6) * rng.uniform(0.5, 1.5, size=3)
    offset = rng.uniform(-16.0, 16.0)
    noise = rng.uniform(0.0, 8.0) * rng.standard_normal(image.shape)
    return _to_uint8(gain * image + offset + noise)


def _to_uint8(image: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _annotate(layer: _Layer) -> dict:
    """Describe what is visible of a layer as COCO does."""
    pixels = layer.visible.astype(np.uint8)
    segmentation: Any
    if layer.crowd:
        segmentation = mask_utils.encode(np.asfortranarray(pixels))
        segmentation['counts'] = segmentation['counts'].decode('ascii')
    else:
        segmentation = _polygons(pixels)
    return dict(
        category_id=layer.category + 1,
        segmentation=segmentation,
        area=int(pixels.sum()),
        bbox=list(cv2.boundingRect(pixels)),
        iscrowd=int(layer.crowd),
    )


def _polygons(mask: np.ndarray) -> list[list[int]]:
    """Trace a mask, (H, W), uint8, along its pixels' edges.

    COCO's polygons have no holes: a mask with one is cut in two through it.
    """
    # OpenCV's contours run through pixel centres. On the mask at double size
    # both pixels beside an edge's end map to that end: (c + 1) // 2.
    double = mask.repeat(2, axis=0).repeat(2, axis=1)
    contours, hierarchy = cv2.findContours(
        double, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE
    )
    for contour, (*_, parent) in zip(contours, hierarchy[0], strict=True):
        if parent >= 0:
            left, _, width, _ = cv2.boundingRect(contour)
            cut = (2 * left + width) // 4
            halves = mask.copy(), mask.copy()
            halves[0][:, cut:] = halves[1][:, :cut] = 0
            return _polygons(halves[0]) + _polygons(halves[1])
    polygons: list[list[int]] = []
    for contour in contours:
        points = (contour[:, 0] + 1) // 2
        new = np.any(points != np.roll(points, 1, axis=0), axis=1)
        polygons.append([int(c) for c in points[new].ravel()])
    return polygons


def main(argv: Sequence[str] | None = None) -> int:
    """Generate the data set of the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog='python -m mmdet_megdet.demo_data',
        description='Generate images of shapes in COCO format.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('out_dir', help='folder of the data set')
    add('--train', type=int, default=320, help='number of training images')
    add('--val', type=int, default=80, help='number of validation images')
    add('--size', type=int, default=128, help='side of an image, in pixels')
    add('--seed', type=int, default=0, help='random seed')
    add('--vary-light', action='store_true', help='vary the light by image')
    args = vars(parser.parse_args(argv))
    size = (args['size'], args.pop('size'))
    try:
        generate_shapes(**args, size=size)
    except (MegDetError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    print(f'{args["out_dir"]}: {args["train"]} + {args["val"]} images')
    return 0


if __name__ == '__main__':
    sys.exit(main())
