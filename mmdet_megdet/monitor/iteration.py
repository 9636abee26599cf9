# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An iteration's numbers for the checks, and the findings they return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..text import some, these_ranks
from .exchange import Numbers
from .record import Level


class Seen(NamedTuple):
    """The numbers of an iteration, as checks take them."""

    numbers: Numbers
    order: list[int]  # the layers in forward order
    max_collective_share: float
    max_running_var: float

    def names(self, layers: Iterable[int]) -> list[str]:
        """Return the names of layers."""
        return [self.numbers.names[i] for i in layers]

    def layers(self, ours: bool, training: bool) -> list[int]:
        """Return MegDetSyncBN or others, in training mode (on all) or not."""
        modes = self.numbers.layers['training'].min(0)
        return [
            i
            for i in self.order
            if self.numbers.ours[i] == ours and modes[i] == training
        ]


class Found(NamedTuple):
    """A problem that a check found; its level, if not the check's own."""

    layers: Sequence[int]
    message: str
    ranks: Sequence[int] = ()
    level: Level | None = None


class Case(NamedTuple):
    """One layer of a finding that may concern many.

    The problem has a place for the number, of which the largest is told.
    """

    layer: int
    problem: str
    ranks: Sequence[int] = ()
    number: float = 0


def together(
    seen: Seen, cases: Iterable[Case], remedy: str
) -> Iterator[Found]:
    """Yield one finding for all layers that have the same problem."""
    by_problem: dict[tuple, list[Case]] = {}
    for case in cases:
        key = case.problem, tuple(case.ranks)
        by_problem.setdefault(key, []).append(case)
    for (problem, ranks), found in by_problem.items():
        layers = [case.layer for case in found]
        what = problem.format(max(case.number for case in found))
        where = f' on {these_ranks(ranks)}' if ranks else ''
        names = some(seen.names(layers))
        yield Found(layers, f'{names}: {what}{where}. {remedy}', ranks)
