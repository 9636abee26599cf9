# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The images of a training epoch."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from .judging import Judged, Judgement


class Epoch(NamedTuple):
    """The images of a training epoch.

    Attributes:
        images (int): How many, as mmdet filters and repeats them.
        mixed (bool): Whether there are portraits and landscapes.
    """

    images: int
    mixed: bool


class _Part(NamedTuple):
    """Images in the order of a data set: shapes, and labels in each."""

    portrait: np.ndarray
    labels: list[set[int]]


def training_epoch(cfg: Any, judgement: Judgement) -> Epoch | None:
    """Return what an epoch sees; None where that is not known.

    Args:
        cfg (Config or dict): The config.
        judgement (Judgement): What its files say.
    """
    judged = {id(j.use.config): j for j in judgement.data_sets if j.counted}
    loader = cfg.get('train_dataloader') or {}
    part = _part(loader.get('dataset'), judged)
    if part is None:
        return None
    portraits = int(part.portrait.sum())
    count = len(part.portrait)
    return Epoch(count, 0 < portraits < count)


def _part(config: Any, judged: dict[int, Judged]) -> _Part | None:
    """Return the images of a data set or a wrapper; None if not known."""
    if not isinstance(config, dict):
        return None
    inner = config.get('datasets') or config.get('dataset')
    if inner is None:
        one = judged.get(id(config))
        return None if one is None else _leaf(one)
    parts = [
        _part(each, judged)
        for each in (inner if isinstance(inner, list | tuple) else [inner])
    ]
    if None in parts:
        return None
    repeats = _REPEATS.get(_name(config))
    if repeats is None:
        return None
    whole = _Part(
        np.concatenate([part.portrait for part in parts]),
        [labels for part in parts for labels in part.labels],
    )
    places = repeats(config, whole)
    return _Part(whole.portrait[places], [whole.labels[i] for i in places])


def _leaf(one: Judged) -> _Part:
    labels: list[set[int]] = [set() for _ in one.ids]
    for image, label in one.objects.tolist():
        labels[image].add(label)
    return _Part(one.sizes[:, 0] < one.sizes[:, 1], labels)


def _name(config: dict) -> str:
    kind = config.get('type')
    name = getattr(kind, '__name__', None) or str(kind)
    return name.rpartition('.')[-1]


def _once(config: dict, part: _Part) -> np.ndarray:
    return np.arange(len(part.portrait))


def _times(config: dict, part: _Part) -> np.ndarray:
    return np.tile(_once(config, part), config['times'])


def _balanced(config: dict, part: _Part) -> np.ndarray:
    """Repeat as MMEngine's ClassBalancedDataset does."""
    count = len(part.labels)
    images = Counter(label for labels in part.labels for label in labels)
    factor = {
        label: max(1.0, math.sqrt(config['oversample_thr'] / (n / count)))
        for label, n in images.items()
    }
    times = [
        math.ceil(max((factor[label] for label in labels), default=1.0))
        for labels in part.labels
    ]
    return np.repeat(np.arange(count), times)


_REPEATS = dict(
    ConcatDataset=_once,
    MultiImageMixDataset=_once,
    RepeatDataset=_times,
    ClassBalancedDataset=_balanced,
)
