# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lists, ranks and counts as text for messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby


def some(names: Iterable[object], most: int = 3, between: str = ', ') -> str:
    """Return the first few names: 'a, b, c and 2 more'."""
    texts = [str(name) for name in names]
    rest = len(texts) - most
    return between.join(texts[:most]) + (f' and {rest} more' * (rest > 0))


def these_ranks(ranks: Iterable[int]) -> str:
    """Return, for instance, 'rank 3' or 'ranks 0, 2, 4-63'."""
    ranks = sorted(ranks)
    parts: list[str] = []
    for run in runs(ranks):
        long = len(run) > 2
        parts += [f'{run[0]}-{run[-1]}'] if long else map(str, run)
    return ('rank ' if len(ranks) == 1 else 'ranks ') + some(parts, 8)


def runs(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Yield each run of consecutive numbers, of some that ascend."""
    # They are as far from their place in the list.
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        yield [number for _, number in run]


def count(number: int, noun: str) -> str:
    """Return, for instance, '1 layer' or '2 layers'."""
    return f'{number} {noun}' + ('' if number == 1 else 's')
