# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Comparisons between ranks, and errors that all ranks raise alike."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from mmengine.dist import all_gather_object

from .errors import ConfigError
from .text import some, these_ranks


@contextmanager
def all_raise() -> Iterator[None]:
    """Raise on every rank what one of them raises in the block; a collective.

    Without it a rank that raises leaves the others waiting in their next
    collective. The block holds no collective itself.

    All ranks get the same type (or its nearest base that they can make from
    its text) and the text of the lowest rank that raised; a rank's own
    exception keeps its traceback, as the cause. What ends a process
    (``SystemExit``, ``KeyboardInterrupt``) leaves at once, on its rank alone.
    """
    own = None
    try:
        yield
    except Exception as error:
        own = error
    sent = None if own is None else _type_and_text(own)
    first = next(filter(None, all_gather_object(sent)), None)
    if first is None:
        return
    if own is not None and sent == first:
        raise own
    raise _made(*first) from own


def differences(
    by_rank: Sequence[Mapping[str, object]], most: int = 6
) -> str | None:
    """Return how ranks differ, as text; None if they agree.

    For each name that differs (at most ``most``) come the values, first what
    most ranks have: 'torch is 2.6 on ranks 0, 1 and 2.7 on rank 2'.
    """
    names = dict.fromkeys(name for facts in by_rank for name in facts)
    texts = []
    for name in names:
        ranks: dict[str, list[int]] = {}
        for rank, facts in enumerate(by_rank):
            ranks.setdefault(str(facts.get(name, 'not set')), []).append(rank)
        if len(ranks) > 1:
            values = sorted(ranks, key=lambda value: -len(ranks[value]))
            found = (f'{v} on {these_ranks(ranks[v])}' for v in values)
            texts.append(f'{name} is {" and ".join(found)}')
    return some(texts, most, '; ') or None


def check_same(facts: Mapping[str, object], who: str) -> None:
    """Refuse facts by name that differ between ranks; a collective."""
    found = differences(all_gather_object(facts))
    if found is not None:
        raise ConfigError(
            f'{who}: ranks differ: {found}. Start all of them with the same '
            'config, options and code.'
        )


def _type_and_text(error: Exception) -> tuple[type[Exception], str]:
    """Return what is sent of an exception, which may not be picklable."""
    text = str(error)
    for kind in type(error).__mro__:
        with suppress(Exception):
            pickle.dumps(kind)
            if str(_made(kind, text)) == text:
                return kind, text
    return Exception, text


def _made(kind: type[Exception], text: str) -> Exception:
    """Make an exception from its text, whatever its class is called with."""
    return kind.__new__(kind, text)
