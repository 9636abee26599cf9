# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading what a compilation has written: its progress and its errors."""

from __future__ import annotations

import re

PROGRESS = re.compile(r'\s*\[(\d+)/(\d+)\] ')
# From the cause to its consequences: the first kind found is reported.
ERRORS = (
    re.compile(r'^ninja: .*interrupted by user'),
    re.compile(r'Killed signal terminated program'),
    re.compile(r'^\S+[:(]\d+.*\b(fatal )?error\b', re.I),
    re.compile(r'undefined reference to|cannot find -l'),
    re.compile(
        r'^\S*(g\+\+|gcc|clang|cc1plus|nvcc|ld)\S*:? .*\berror\b', re.I
    ),
    re.compile(r'^(nvcc )?fatal\s*:'),
    re.compile(r'^[\w.]+(Error|Exception): '),
)


def progress(line: str) -> tuple[int, int] | None:
    """Ninja's ``[done/total]`` at a line's start, if it has one."""
    found = PROGRESS.match(line)
    return (int(found[1]), int(found[2])) if found else None


def last_error(log: str) -> str:
    """The last error in a build's log, with the two lines that show it.

    Where no line looks like an error, the last lines that are not empty.
    """
    lines = [line.strip('\r') for line in log.splitlines()]
    for pattern in ERRORS:
        for i in reversed(range(len(lines))):
            text = lines[i].strip()
            if pattern.search(text):
                shown = [text]
                for line in lines[i + 1 : i + 3]:
                    # The excerpt of the source and its marker: `  12 | ...`
                    if re.match(r'\s*\d*\s*\|', line):
                        shown.append(line.rstrip())
                return '\n'.join(shown)
    return '\n'.join([line for line in lines if line.strip()][-5:])
