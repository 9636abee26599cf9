# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The images of a training epoch."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from .datasets import type_name
from .judgement import Judged, Judgement


class Epoch(NamedTuple):
    """The images of a training epoch.

    Attributes:
        images (int): How many, as mmdet filters and repeats them.
        mixed (bool): Whether there are portraits and landscapes.
    """

    images: int
    mixed: bool


class _Image(NamedTuple):
    portrait: bool
    labels: set[int]


def training_epoch(cfg: Any, judgement: Judgement) -> Epoch | None:
    """Return what an epoch sees; None where that is not known.

    Args:
        cfg (Config or dict): The config.
        judgement (Judgement): What its files say.
    """
    judged = {id(j.use.config): j for j in judgement.data_sets if j.counted}
    loader = cfg.get('train_dataloader') or {}
    images = _images(loader.get('dataset'), judged)
    if images is None:
        return None
    return Epoch(len(images), len({image.portrait for image in images}) == 2)


def _images(config: Any, judged: dict[int, Judged]) -> list[_Image] | None:
    """Return the images of a data set or a wrapper; None if not known."""
    if not isinstance(config, dict):
        return None
    inner = config.get('datasets') or config.get('dataset')
    if inner is None:
        one = judged.get(id(config))
        return None if one is None else _images_of(one)
    images: list[_Image] = []
    for each in inner if isinstance(inner, list | tuple) else [inner]:
        part = _images(each, judged)
        if part is None:
            return None
        images += part
    match type_name(config.get('type')):
        case 'ConcatDataset' | 'MultiImageMixDataset':
            return images
        case 'RepeatDataset':
            return images * config['times']
        case 'ClassBalancedDataset':
            return _balanced(images, config['oversample_thr'])
    return None


def _images_of(one: Judged) -> list[_Image]:
    portrait = one.sizes[:, 0] < one.sizes[:, 1]
    images = [_Image(upright, set()) for upright in portrait.tolist()]
    for place, label in one.objects.tolist():
        images[place].labels.add(label)
    return images


def _balanced(images: list[_Image], threshold: float) -> list[_Image]:
    """Repeat as MMEngine's ClassBalancedDataset does."""
    counts = Counter(label for image in images for label in image.labels)
    factors = {
        label: max(1.0, math.sqrt(threshold / (count / len(images))))
        for label, count in counts.items()
    }
    return [
        image
        for image in images
        for _ in range(
            math.ceil(max((factors[x] for x in image.labels), default=1.0))
        )
    ]
