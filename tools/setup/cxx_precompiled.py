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
REPLACED = re.compile(r'-O([0-3sgz]|fast)?|-g(\d|gdb\d?|dwarf(-\d)?)?')
SOURCE = re.compile(r'.+\.(cpp|cc|cxx|C)')
# Options of one object, which the header must not take over.
OWN_WITH_VALUE = ('-o', '-MF', '-MT', '-MQ', '-x')
OWN = ('-c', '-MD', '-MMD', '-MP')
# Others whose value is a word of its own, and may look like a source.
SHARED_WITH_VALUE = ('-I', '-D', '-U', '-include', '-isystem', '-iquote')


def split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Sort a compiler's arguments.

    Returns:
        tuple: The arguments that every object shares, those of this one
        object, in their order, and the sources among the latter.
        Optimisation and debug options are left out.
    """
    shared, own, sources = [], [], []
    words = iter(arguments)
    for word in words:
        if word in OWN_WITH_VALUE:
            own += [word, next(words, '')]
        elif word in SHARED_WITH_VALUE:
            shared += [word, next(words, '')]
        elif SOURCE.fullmatch(word) and not word.startswith('-'):
            own.append(word)
            sources.append(word)
        elif word in OWN or re.fullmatch(r'-[ox].+', word):
            own.append(word)
        elif not REPLACED.fullmatch(word):
            shared.append(word)
    return shared, own, sources


def precompile(
    compiler: list[str], options: list[str], folder: Path, header: str
) -> Path | None:
    """Make the precompiled header, once for all concurrent callers.

    Returns:
        Path | None: What to ``-include``, or None if it does not compile.
    """
    prefix = folder / 'prefix.h'
    precompiled = folder / 'prefix.h.gch'
    failed = folder / 'failed'
    with (folder / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not precompiled.exists() and not failed.exists():
            prefix.write_text(f'#include <{header}>\n')
            # Renamed when whole: an interrupted compiler leaves no half one.
            part = folder / 'prefix.part'
            made = subprocess.run(
                [*compiler, *options, *OPTIMISE, '-x', 'c++-header']
                + [str(prefix), '-o', str(part)],
                capture_output=True,
                text=True,
            )
            if made.returncode == 0:
                part.replace(precompiled)
            elif made.returncode > 0:
                failed.write_text(made.stderr)
                print(f'{header} cannot be precompiled:', file=sys.stderr)
                print(made.stderr, file=sys.stderr)
    return prefix if precompiled.exists() else None


def main(arguments: list[str]) -> int:
    compiler = shlex.split(os.environ['MEGDET_CXX'])
    shared, own, sources = split(arguments)
    if '-c' not in own or len(sources) != 1:
        os.execvp(compiler[0], compiler + arguments)
    prefix = precompile(
        compiler,
        shared,
        Path(os.environ['MEGDET_CXX_DIR']),
        os.environ.get('MEGDET_CXX_HEADER', 'torch/types.h'),
    )
    plain = [*shared, *own, *OPTIMISE]
    if prefix is not None:
        command = [*compiler, '-include', str(prefix), *plain]
        compiled = subprocess.run(command, stderr=subprocess.PIPE)
        if compiled.returncode <= 0:
            sys.stderr.buffer.write(compiled.stderr)
            # A negative status is a signal: whoever sent it wants an end.
            return 128 - compiled.returncode if compiled.returncode else 0
    os.execvp(compiler[0], compiler + plain)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
