# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What is said of an annotation file."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal['broken', 'misleading', 'notable', 'sound']


class Verdict(NamedTuple):
    """One thing that an annotation file says or lacks.

    Attributes:
        level (str): 'broken': mmdet or pycocotools raise at it, while the
            data set is built or later. 'misleading': training goes on
            without a word, and learns something else than is meant.
            'notable': something is left out, or may be wrong. 'sound': there
            is nothing to say.
        check (str): What was checked, in a word.
        text (str): What was found, with file and ids.
        remedy (str): What to do about it.
        roles (tuple[str]): For what the file is used: 'train', 'val', 'test'.
    """

    level: Level
    check: str
    text: str
    remedy: str = ''
    roles: tuple[str, ...] = ()
