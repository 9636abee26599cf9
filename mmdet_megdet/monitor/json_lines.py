# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Typed lines of JSON in a file that a killed run leaves whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from ..errors import ConfigError

_Line = TypeVar('_Line', bound=msgspec.Struct)


class JsonLines(Generic[_Line]):
    """A file of one object a line, which one process writes.

    A line is written at once and closed; what is not finite is null. Fields
    that the type does not have are passed over.

    Args:
        path (Path): The file.
        kind (type[msgspec.Struct]): Of a line.
        counter (str): The field that has the number of iterations done.
    """

    def __init__(self, path: Path, kind: type[_Line], counter: str) -> None:
        self.path = path
        self._kind = kind
        self._counter = counter

    def append(self, line: _Line) -> None:
        """Write a line."""
        with self.path.open('ab') as file:
            file.write(msgspec.json.encode(line) + b'\n')

    def resume(self, iteration: int) -> None:
        """Keep the lines up to an iteration, from which the run goes on.

        What came after it is done again, and a line that was cut off never
        was; iteration 0 begins the file anew. The file is replaced as a whole
        or not at all.
        """
        if not self.path.is_file():
            return
        temporary = self.path.with_suffix('.tmp')
        with self.path.open('rb') as old, temporary.open('wb') as new:
            new.writelines(
                line for line in old if self._keeps(line, iteration)
            )
        os.replace(temporary, self.path)

    def read(self) -> list[_Line]:
        """Return the lines, of a running job too; at least one.

        A last line that is not complete yet is left out. Where the counter
        goes back, a training was repeated from there on: the later lines
        replace the earlier ones.

        Raises:
            ConfigError: If there is no file or no line, or one is broken.
        """
        # Not splitlines(), to which other characters end a line as well.
        text = self.path.read_bytes() if self.path.is_file() else b''
        *lines, _ = text.split(b'\n')
        found: list[_Line] = []
        for number, line in enumerate(lines, 1):
            try:
                read = msgspec.json.decode(line, type=self._kind)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f'{self.path}, line {number}: {error}. Remove the line '
                    'to read the rest.'
                ) from error
            while found and self._done(found[-1]) >= self._done(read):
                found.pop()
            found.append(read)
        if not found:
            raise ConfigError(
                f'{self.path}: nothing is recorded. The hook that writes it '
                'has to be in default_hooks, and to have looked once.'
            )
        return found

    def _done(self, line: _Line) -> int:
        return getattr(line, self._counter)

    def _keeps(self, line: bytes, iteration: int) -> bool:
        try:
            read = msgspec.json.decode(line, type=self._kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        return line.endswith(b'\n') and self._done(read) <= iteration
