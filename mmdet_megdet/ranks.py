# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How ranks compare what they have, and all raise the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mmengine.dist import all_gather_object

from .errors import MegDetError
from .text import some, these_ranks


@contextmanager
def all_raise() -> Iterator[None]:
    """Raise on every rank what one of them raises in the block; a collective.

    Contract: all ranks enter the block, which holds no collective itself. A
    :class:`MegDetError` of one rank leaves the block on all of them, that of
    the lowest rank where there are several; the other ranks would wait for
    it otherwise. Any other exception leaves at once, on its rank alone.
    """
    error = None
    try:
        yield
    except MegDetError as found:
        error = found
    for first in all_gather_object(error):
        if first is not None:
            # The rank's own has its traceback.
            raise first if error is None else error


def differences(
    by_rank: Sequence[Mapping[str, object]], most: int = 6
) -> str | None:
    """Say in what ranks differ.

    Args:
        by_rank (Sequence[Mapping[str, object]]): Facts by name, of each rank.
        most (int): How many differences are named. Defaults to 6.

    Returns:
        str, optional: For each name the values and their ranks; None where
        all ranks have the same.

    Examples:
        >>> differences([{'torch': '2.6'}, {'torch': '2.7'}])
        'torch is 2.6 on rank 0 and 2.7 on rank 1'
    """
    names = dict.fromkeys(name for facts in by_rank for name in facts)
    texts = []
    for name in names:
        ranks: dict[str, list[int]] = {}
        for rank, facts in enumerate(by_rank):
            ranks.setdefault(str(facts.get(name, 'not set')), []).append(rank)
        if len(ranks) > 1:
            # First what most ranks have.
            values = sorted(ranks, key=lambda value: -len(ranks[value]))
            found = (f'{v} on {these_ranks(ranks[v])}' for v in values)
            texts.append(f'{name} is {" and ".join(found)}')
    return some(texts, most, '; ') or None
