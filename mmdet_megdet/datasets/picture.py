# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""One picture of the data set with its annotations, from its number alone."""

from __future__ import annotations

import numpy as np

from .annotation import annotate
from .drawing import paint, relight
from .scene import compose

SPLITS = ('train', 'val')


def make_picture(
    split: str,
    index: int,
    size: tuple[int, int],
    seed: int = 0,
    vary_light: bool = False,
) -> tuple[np.ndarray, list[dict]]:
    """Make one picture and its annotations, in memory.

    Args:
        split (str): ``'train'`` or ``'val'``.
        index (int): Number of the picture within the split.
        size (tuple[int, int]): Width and height in pixels.
        seed (int): Seed of the data set. Defaults to 0.
        vary_light (bool): Whether to vary the light. Defaults to False.

    Returns:
        tuple[np.ndarray, list[dict]]: RGB picture, (H, W, 3), uint8; COCO
        annotations, without the ids of picture and annotation.
    """
    key = [seed, SPLITS.index(split), index]
    rng = np.random.default_rng([*key, 0])
    layers = compose(rng, index, *size)
    picture = paint(rng, layers, *size)
    if vary_light:
        # Its own generator: the scene is the same in any light.
        picture = relight(np.random.default_rng([*key, 1]), picture)
    annotations = [
        {
            'category_id': layer.category + 1,
            **annotate(layer.visible, layer.crowd),
        }
        for layer in layers
    ]
    return picture, annotations
