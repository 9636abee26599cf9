# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lists, ranks and counts as a line of text has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def some(names: Iterable[object], most: int = 3, between: str = ', ') -> str:
    """Return the first few names, and how many more there are.

    Args:
        names (Iterable): What is listed.
        most (int): How many are named. Defaults to 3.
        between (str): What stands between two. Defaults to a comma.

    Examples:
        >>> some('abcde')
        'a, b, c and 2 more'
    """
    texts = [str(name) for name in names]
    rest = len(texts) - most
    return between.join(texts[:most]) + (f' and {rest} more' * (rest > 0))


def these_ranks(ranks: Sequence[int]) -> str:
    """Return, for instance, 'rank 3' or 'ranks 0, 1, 2 and 61 more'."""
    word = 'rank' if len(ranks) == 1 else 'ranks'
    return f'{word} {some(ranks, 8)}'


def count(number: int, noun: str) -> str:
    """Return, for instance, '1 layer' or '2 layers'."""
    return f'{number} {noun}' + ('' if number == 1 else 's')
