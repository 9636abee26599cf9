# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A C++ compiler that reads torch's headers once instead of in every file.

Called in place of the compiler, with the compiler's own arguments. Compiling
one C++ source to an object, it includes a precompiled header, made at the
first call, and takes ``-O2 -g0`` in place of what optimisation and debug
options there are. Where the header cannot be made, or a source does not
compile with it, the plain compiler does it. Everything else (linking,
``--version``) goes through unchanged. g++ and clang++ are both served.

Environment:
    MEGDET_CXX: the compiler's command.
    MEGDET_CXX_DIR: an existing folder for the header, removed by the caller.
    MEGDET_CXX_HEADER: the header, by default ``torch/types.h``.
    MEGDET_CXX_STD: the language's standard, in place of the arguments'.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

OPTIMISE = ['-O2', '-g0']
REPLACED = r'-O([0-3sgz]|fast)?|-g(\d|gdb\d?|dwarf(-\d)?)?'
SOURCE = re.compile(r'[^-].*\.(cpp|cc|cxx|C)')
# Options of one object, which the header must not take over.
OWN = re.compile(r'-c|-MM?D|-o.+')
OWN_WITH_VALUE = ('-o', '-MF')


def split(
    arguments: list[str], standard: str
) -> tuple[list[str], list[str], list[str]]:
    """Sort a compiler's arguments; a standard replaces theirs, if given.

    Returns:
        tuple: The arguments that every object shares, without optimisation
        and debug options, those of this one object, and its sources.
    """
    replaced = re.compile(REPLACED + ('|-std=.+' if standard else ''))
    shared, own, sources = [], [], []
    words = iter(arguments)
    for word in words:
        if word in OWN_WITH_VALUE:
            own += [word, next(words, '')]
        elif SOURCE.fullmatch(word):
            own.append(word)
            sources.append(word)
        elif OWN.fullmatch(word):
            own.append(word)
        elif not replaced.fullmatch(word):
            shared.append(word)
    return shared + [f'-std={standard}'] * bool(standard), own, sources


def precompile(command: list[str], folder: Path, header: str) -> Path | None:
    """Make the header once for all concurrent callers, if it compiles."""
    prefix = folder / 'prefix.h'
    precompiled = folder / 'prefix.h.gch'
    failed = folder / 'failed'
    with (folder / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not precompiled.exists() and not failed.exists():
            prefix.write_text(f'#include <{header}>\n')
            # Renamed when whole: an interrupted compiler leaves no half one.
            part = folder / 'prefix.part'
            words = ['-x', 'c++-header', str(prefix), '-o', str(part)]
            made = subprocess.run([*command, *words], stderr=subprocess.PIPE)
            if made.returncode:
                sys.stderr.buffer.write(made.stderr)
                failed.touch()
            else:
                part.replace(precompiled)
    return prefix if precompiled.exists() else None


def main(arguments: list[str]) -> int:
    """Compile with the header, else become the plain compiler."""
    compiler = shlex.split(os.environ['MEGDET_CXX'])
    standard = os.environ.get('MEGDET_CXX_STD', '')
    shared, own, sources = split(arguments, standard)
    if '-c' not in own or len(sources) != 1:
        os.execvp(compiler[0], compiler + arguments)
    plain = [*compiler, *shared, *OPTIMISE]
    header = os.environ.get('MEGDET_CXX_HEADER', 'torch/types.h')
    prefix = precompile(plain, Path(os.environ['MEGDET_CXX_DIR']), header)
    if prefix is not None:
        command = [*plain, '-include', str(prefix), *own]
        compiled = subprocess.run(command, stderr=subprocess.PIPE)
        if compiled.returncode == 0:
            sys.stderr.buffer.write(compiled.stderr)
            return 0
    os.execvp(compiler[0], plain + own)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
