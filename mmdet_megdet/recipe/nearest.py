# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The splits that can be, nearest to one that cannot."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from .bn_groups import divisors, group_ranks, nearest_bn_sizes
from .split import Split

# Among equally small changes, first what leaves the recipe as it is.
_PREFERENCE = ('images_per_gpu', 'bn_size', 'world_size', 'total_batch_size')


def nearest_splits(asked: Split) -> list[Split]:
    """What could be run instead, least changed first.

    One split for each way to change the numbers (more and fewer GPUs are two
    ways), and none that changes more kinds of numbers than it has to.

    Args:
        asked (Split): A split with problems.

    Returns:
        list[Split]: Splits without; those that change the fewest numbers
        come first, among them those that keep the total batch, and among
        these those that change by the smallest factors.
    """
    chosen: dict[frozenset[str], Split] = {}
    for split in sorted(_candidates(asked), key=lambda s: _cost(asked, s)):
        way = _way(asked, split)
        if not any(simpler <= way for simpler in chosen):
            chosen[way] = split
    return list(chosen.values())


def changed(asked: Split, split: Split) -> list[str]:
    """Names of the numbers that differ, the dearest last."""
    return [
        name
        for name in _PREFERENCE
        if getattr(asked, name) != getattr(split, name)
    ]


def _way(asked: Split, split: Split) -> frozenset[str]:
    fewer = split.world_size < asked.world_size
    return frozenset(
        f'{name} {fewer}' if name == 'world_size' else name
        for name in changed(asked, split)
    )


def _cost(asked: Split, split: Split) -> tuple:
    names = changed(asked, split)
    distance = sum(
        abs(log2(getattr(split, name) / getattr(asked, name)))
        for name in names
    )
    order = [_PREFERENCE.index(name) for name in names]
    # The total batch is what a recipe is made for, and kept if it can be.
    # Rounded, so that halving and doubling cost the same. The split itself
    # settles what is left.
    return (
        len(names),
        'total_batch_size' in names,
        round(distance, 9),
        order,
        split._replace(bn_size=0),
    )


def _candidates(asked: Split) -> Iterator[Split]:
    """Numbers near the asked ones with which the total batch divides."""
    total = asked.total_batch_size
    for world in {asked.world_size, *divisors(total)}:
        for images in {asked.images_per_gpu, *divisors(total)}:
            below = total - total % (world * images)
            if below == total:
                totals = [total]
            elif world == asked.world_size:
                totals = [n for n in (below, below + world * images) if n]
            else:
                continue
            for bn_size in _bn_sizes(asked.bn_size, images, world):
                yield from (Split(world, images, n, bn_size) for n in totals)


def _bn_sizes(size: int | None, images: int, world: int) -> list[int | None]:
    if group_ranks(size, images, world) is not None:
        return [size]
    return nearest_bn_sizes(size, images, world)
