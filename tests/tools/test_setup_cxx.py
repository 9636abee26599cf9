# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The compiler wrapper, on a header of one line instead of torch's."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tools.command import ROOT

WRAPPER = ROOT / 'tools' / 'setup' / 'cxx_precompiled.py'
# As ninja calls it: a second -c, and a dependency file.
ONE_OBJECT = shlex.split(
    '-MMD -MF main.o.d -ggdb3 -Ofast -isystem include -c -c main.cpp '
    '-omain.o -std=c++17'
)


@pytest.fixture(params=filter(shutil.which, ('g++', 'clang++')))
def compiler(request, tmp_path) -> Path:
    """A compiler that notes its arguments in ``calls`` beside it."""
    noting = tmp_path / 'compiler'
    noting.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f'exec {shutil.which(request.param)} "$@"\n'
    )
    noting.chmod(0o755)
    return noting


@pytest.fixture
def wrapped(compiler, tmp_path):
    """Calls the wrapper in tmp_path with these arguments."""
    (tmp_path / 'precompiled').mkdir()
    (tmp_path / 'include').mkdir()
    (tmp_path / 'include/shared.h').write_text(
        '#pragma once\ninline int shared() { return 42; }\n'
    )
    (tmp_path / 'main.cpp').write_text(
        '#include <shared.h>\nint main() { return shared() - 42; }\n'
    )

    def call(*arguments: str, **env: str) -> subprocess.CompletedProcess:
        env = {
            'MEGDET_CXX': str(compiler),
            'MEGDET_CXX_DIR': str(tmp_path / 'precompiled'),
            'MEGDET_CXX_HEADER': 'shared.h',
            'LC_ALL': 'C',
            **env,
        }
        return subprocess.run(
            [sys.executable, '-I', '-S', WRAPPER, *arguments],
            cwd=tmp_path,
            env=os.environ | env,
            capture_output=True,
            text=True,
        )

    return call


def calls(tmp_path: Path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / 'calls').open()]


def test_object_is_compiled_with_the_precompiled_header(wrapped, tmp_path):
    # -H names the headers that are read as text.
    done = wrapped(*ONE_OBJECT, '-H')
    assert done.returncode == 0
    assert 'include/shared.h' not in done.stderr
    header, source = calls(tmp_path)
    assert header[-2:] == ['-o', str(tmp_path / 'precompiled/prefix.part')]
    assert not {'main.cpp', 'main.o', 'main.o.d'} & set(header)
    assert {'main.cpp', str(tmp_path / 'precompiled/prefix.h')} <= set(source)
    for call in header, source:
        assert {'-O2', '-g0'} <= set(call)
        assert not {'-Ofast', '-ggdb3'} & set(call)
    assert wrapped('main.o', '-o', 'program').returncode == 0
    assert subprocess.run([tmp_path / 'program']).returncode == 0


def test_standard_takes_the_place_of_the_arguments(wrapped, tmp_path):
    # As torch's headers from 2.15 on, for mmcv which asks for C++17.
    header = tmp_path / 'include/shared.h'
    header.write_text(
        f'{header.read_text()}static_assert(__cplusplus > 201703L);'
    )
    assert wrapped(*ONE_OBJECT).returncode == 1
    (tmp_path / 'calls').unlink()
    (tmp_path / 'precompiled/failed').unlink()
    assert wrapped(*ONE_OBJECT, MEGDET_CXX_STD='c++20').returncode == 0
    for call in calls(tmp_path):
        assert [w for w in call if w.startswith('-std')] == ['-std=c++20']


def test_header_is_made_once_for_many_at_a_time(wrapped, tmp_path):
    def compile_one(i: int) -> int:
        (tmp_path / f'{i}.cpp').write_text('#include <shared.h>\n')
        return wrapped('-Iinclude', '-c', f'{i}.cpp').returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compile_one, range(8))) == [0] * 8
    headers = [call for call in calls(tmp_path) if 'c++-header' in call]
    assert len(headers) == 1


def test_header_that_does_not_compile_leaves_the_plain_compiler(
    wrapped, tmp_path
):
    for _ in range(2):
        done = wrapped(*ONE_OBJECT, MEGDET_CXX_HEADER='not/there.h')
        assert done.returncode == 0
    header, *plain = calls(tmp_path)
    assert 'c++-header' in header
    assert len(plain) == 2
    assert not [call for call in plain if '-include' in call]
    assert not (tmp_path / 'precompiled/prefix.h.gch').exists()


def test_source_that_dislikes_the_header_is_compiled_plainly(
    wrapped, tmp_path
):
    source = tmp_path / 'main.cpp'
    source.write_text('int shared() { return 42; }\nint main() {}\n')
    done = wrapped(*ONE_OBJECT)
    assert (done.returncode, done.stderr) == (0, '')
    assert '-include' not in calls(tmp_path)[-1]
    # What does not compile at all is reported once.
    source.write_text('int main() { return nothing; }\n')
    done = wrapped(*ONE_OBJECT)
    assert done.returncode == 1
    assert done.stderr.count('error:') == 1


@pytest.mark.parametrize(
    'arguments',
    [
        '-shared a.o -g -O3 -o a.so',
        '-E main.cpp -Iinclude -O3',
        '-c main.cpp other.cpp -O3',
    ],
)
def test_all_else_goes_through_unchanged(wrapped, tmp_path, arguments):
    wrapped(*arguments.split())
    assert calls(tmp_path) == [arguments.split()]
