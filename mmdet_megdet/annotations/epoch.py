# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The images of a training epoch."""

from __future__ import annotations

from typing import Any, NamedTuple

from .datasets import inner_of, type_name
from .judgement import Judgement


class Epoch(NamedTuple):
    """The images of a training epoch."""

    images: int  # as mmdet filters and repeats them
    mixed: bool  # whether there are portraits and landscapes


def training_epoch(cfg: Any, judgement: Judgement) -> Epoch | None:
    """Return the images of a config's training epoch, if its files tell."""
    portraits = {
        id(one.use.config): (one.sizes[:, 0] < one.sizes[:, 1]).tolist()
        for one in judgement.data_sets
        if one.counted
    }
    loader = cfg.get('train_dataloader') or {}
    found = _portraits(loader.get('dataset'), portraits)
    return None if found is None else Epoch(len(found), len(set(found)) == 2)


def _portraits(config: Any, known: dict[int, list[bool]]) -> list[bool] | None:
    """Return whether each image of a data set, or a wrapper, is upright."""
    inner = inner_of(config or {})
    if inner is None:
        return known.get(id(config))
    times = {
        'ConcatDataset': 1,
        'MultiImageMixDataset': 1,
        'RepeatDataset': config.get('times'),
    }.get(type_name(config.get('type')))
    parts = [_portraits(part, known) for part in inner]
    if times is None or None in parts:
        return None
    return times * [upright for part in parts for upright in part or ()]
