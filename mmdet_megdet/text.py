# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lists, ranks and counts as text for messages."""

from __future__ import annotations

from collections.abc import Iterable
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
    # Consecutive ranks are as far from their place in the list.
    for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        these = [str(rank) for _, rank in run]
        parts += [f'{these[0]}-{these[-1]}'] if len(these) > 2 else these
    return ('rank ' if len(ranks) == 1 else 'ranks ') + some(parts, 8)


def count(number: int, noun: str) -> str:
    """Return, for instance, '1 layer' or '2 layers'."""
    return f'{number} {noun}' + ('' if number == 1 else 's')
