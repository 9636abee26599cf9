# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lines of JSON: one self-describing object for an iteration, a line."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

FILE_NAME = 'bn_stats.jsonl'
VERSION = 1

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


class Record:
    """Lines of JSON in a file that a killed run leaves whole.

    A line is written at once and closed; numbers have six digits, and what
    is not finite is null. One process writes.

    Args:
        folder (Path): Where the file is, or will be.
        name (str): The file's. Defaults to 'bn_stats.jsonl'.
        counter (str): Under which name a line has the number of iterations
            done. Defaults to 'iter'.
    """

    def __init__(
        self, folder: Path, name: str = FILE_NAME, counter: str = 'iter'
    ) -> None:
        self.path = Path(folder) / name
        self._counter = counter

    def resume(self, iteration: int) -> None:
        """Keep the lines up to an iteration, from which the run goes on.

        What came after it is done again, and a line that was cut off never
        was. The file is replaced as a whole or not at all.

        Args:
            iteration (int): Iterations completed; 0 for a run that starts
                anew, which begins the file anew.
        """
        if not self.path.is_file():
            return
        temporary = self.path.with_suffix('.tmp')
        with self.path.open('rb') as old, temporary.open('wb') as new:
            new.writelines(
                line for line in old if self._keeps(line, iteration)
            )
        os.replace(temporary, self.path)

    def append(self, content: dict[str, Any]) -> None:
        """Write one iteration's object, with the format's version."""
        content = dict(version=VERSION, **content)
        line = json.dumps(_plain(content), allow_nan=False)
        with self.path.open('a', encoding='utf-8') as file:
            file.write(line + '\n')

    def _keeps(self, line: bytes, iteration: int) -> bool:
        try:
            done = json.loads(line)[self._counter]
            return line.endswith(b'\n') and done <= iteration
        except (ValueError, KeyError, TypeError):
            return False


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f'{value:.6g}') if math.isfinite(value) else None
    return value
