# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Typed lines of JSON in a file that a killed run leaves whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from ..errors import ConfigError

_Line = TypeVar('_Line', bound=msgspec.Struct)
# What decoding a line raises.
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError)


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

        A line that was cut off goes too; iteration 0 begins the file anew.
        The file is replaced as a whole or not at all.
        """
        if not self.path.is_file():
            return
        kept = []
        for line in self._complete_lines():
            with suppress(*_BROKEN):
                if self._done(self._decoded(line)) <= iteration:
                    kept.append(line)
        temporary = self.path.with_suffix('.tmp')
        temporary.write_bytes(b''.join(kept))
        os.replace(temporary, self.path)

    def read(self) -> list[_Line]:
        """Return the lines, of a running job too; at least one.

        A last line that is not complete yet is left out. Where the counter
        goes back, a training was repeated from there on: the later lines
        replace the earlier ones. No line, or a broken one, is a ConfigError.
        """
        found: list[_Line] = []
        for number, line in enumerate(self._complete_lines(), 1):
            try:
                read = self._decoded(line)
            except _BROKEN as error:
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

    def _complete_lines(self) -> list[bytes]:
        content = self.path.read_bytes() if self.path.is_file() else b''
        lines = content.splitlines(keepends=True)
        return [line for line in lines if line.endswith(b'\n')]

    def _decoded(self, line: bytes) -> _Line:
        return msgspec.json.decode(line, type=self._kind)

    def _done(self, line: _Line) -> int:
        return getattr(line, self._counter)
