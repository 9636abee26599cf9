# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a verdict consists of."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal['error', 'warning', 'info']


class Finding(NamedTuple):
    """Something that a person should know, in one line.

    Attributes:
        check (str): What was looked at, as 'call-order'.
        level (str): 'error': training does not do what it should;
            'warning': it may not be what you want; 'info'.
        layers (list[str]): Names, in forward order.
        ranks (list[int]): Those that stand out; empty if none does.
        message (str): Layers, ranks, values, and the remedy.
    """

    check: str
    level: Level
    layers: list[str]
    ranks: list[int]
    message: str

    def key(self) -> tuple:
        """What makes it another finding: not its values."""
        return self.check, self.level, tuple(self.layers), tuple(self.ranks)
