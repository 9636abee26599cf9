# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Names and ranks as a line of text has them."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - most
    return ', '.join(names[:most]) + (f' and {rest} more' if rest > 0 else '')


def these_ranks(ranks: Sequence[int]) -> str:
    """For instance 'rank 3' or 'ranks 0, 1, 2 and 61 more'."""
    word = 'rank' if len(ranks) == 1 else 'ranks'
    return f'{word} {some([str(rank) for rank in ranks], 8)}'


def layers(number: int) -> str:
    """For instance '1 layer' or '2 layers'."""
    return f'{number} layer' + ('' if number == 1 else 's')
