# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How a generated picture looks: colours, textures and light."""

from __future__ import annotations

import cv2
import numpy as np

from .scene import METAINFO, Layer

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
        np.ndarray: RGB picture, (H, W, 3), uint8.
    """
    grey = rng.uniform(70, 170)
    tint = rng.uniform(-12, 12, 3)
    texture = rng.uniform(8, 28) * _texture(rng, width, height)
    picture = grey + tint + texture[..., None]
    for layer in layers:
        colour = np.array(METAINFO['palette'][layer.category])
        colour = colour * rng.uniform(0.85, 1.1) + rng.uniform(-15, 15, 3)
        contrast = rng.uniform(0.1, 0.25)
        shade = 1 + contrast * _texture(rng, width, height)
        share = layer.coverage[..., None] / 255
        painted = colour * shade[..., None]
        picture = (1 - share) * picture + share * painted
    return _to_uint8(picture)


def relight(rng: np.random.Generator, picture: np.ndarray) -> np.ndarray:
    """Photograph the picture under another light.

    One gain (0.15 to 1.6), colour cast (0.5 to 1.5 per channel), offset (-16
    to 16 grey levels) and noise (standard deviation 0 to 8 grey levels) are
    drawn per picture, each uniformly.

    Args:
        rng (np.random.Generator): Source of all that is random.
        picture (np.ndarray): RGB picture, (H, W, 3), uint8.

    Returns:
        np.ndarray: RGB picture, (H, W, 3), uint8.
    """
    gain = rng.uniform(*GAIN_RANGE) * rng.uniform(*CAST_RANGE, size=3)
    offset = rng.uniform(*OFFSET_RANGE)
    noise = rng.uniform(*NOISE_RANGE) * rng.standard_normal(picture.shape)
    return _to_uint8(gain * picture + offset + noise)


def _to_uint8(picture: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


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
