# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What is said of an annotation file."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal['broken', 'misleading', 'notable', 'sound']


class Verdict(NamedTuple):
    """One thing that an annotation file says or lacks.

    Attributes:
        level (str): 'broken': it cannot train or be evaluated, mmdet or
            pycocotools would raise, now or later. 'misleading': it trains,
            and something else than is meant, without a word. 'notable': a
            little is left out, or may be wrong. 'sound': nothing.
        check (str): What was looked at, in a word.
        text (str): What was found, with file and ids.
        remedy (str): What to do about it.
        roles (tuple[str]): For what the file is used: 'train', 'val', 'test'.
    """

    level: Level
    check: str
    text: str
    remedy: str = ''
    roles: tuple[str, ...] = ()
