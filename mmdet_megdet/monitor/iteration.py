# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What checks take of an iteration, and what they return of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .exchange import Numbers
from .record import Level


class Seen(NamedTuple):
    """The numbers of an iteration, and the limits for them."""

    numbers: Numbers
    order: list[int]  # the layers in forward order
    max_collective_share: float
    max_running_var: float

    def layers(self, ours: bool, training: bool) -> list[int]:
        """Return MegDetSyncBN or others, in training mode (on all) or not."""
        modes = self.numbers.layers['training'].min(0)
        return [
            i
            for i in self.order
            if self.numbers.ours[i] == ours and modes[i] == training
        ]


class Problem(NamedTuple):
    """A problem that a check found.

    Those of one text and the same ranks become one finding. The text has
    places for ``{layers}``, ``{ranks}`` and the largest ``{number}``.
    """

    layers: Sequence[int]
    text: str
    ranks: Sequence[int] = ()
    number: float = 0
    level: Level | None = None  # if not the check's own
