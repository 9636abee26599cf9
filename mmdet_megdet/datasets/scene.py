# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a generated picture shows: which shapes, where, and what hides what.

Coordinates are in pixels; (0, 0) is the outer corner of the top left pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring')

# The palette (RGB) is also the mean colour of each class in the pictures.
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

# Fixed places in the sequence, so that every split of 16 pictures has both.
EMPTY_EVERY = 16
CROWD_EVERY = 8
CROWD_PLACE = 3

MAX_OBJECTS = 5
# Radius of an object as a share of the picture's shorter side.
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
    """Lay out one picture.

    Every 16th picture (index 15, 31, ...) is left empty; every 8th (index 3,
    11, ...) has a crowd region below its objects. The first layer's class
    goes round with the index, so that small splits hold all classes.

    Args:
        rng (np.random.Generator): Source of all that is random.
        index (int): Number of the picture within its split.
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
    # A full picture refuses more shapes: the number of tries is bounded.
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
    # Up to two fifths of the radius may stick out of the picture.
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
