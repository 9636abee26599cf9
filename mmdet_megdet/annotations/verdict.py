# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The verdict on an annotation file."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal['broken', 'misleading', 'notable', 'sound']


class Verdict(NamedTuple):
    """One thing that an annotation file says or lacks.

    Levels: 'broken': mmdet or pycocotools raise at it, perhaps late.
    'misleading': training goes on without a word, and learns something else
    than is meant. 'notable': something is left out, or may be wrong. 'sound'.
    """

    level: Level
    text: str  # what was found, with file and ids
    remedy: str = ''
    roles: tuple[str, ...] = ()  # for what the file is used
