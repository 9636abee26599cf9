# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The compiler wrapper, on a header of one line instead of torch's."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tools.command import ROOT

WRAPPER = ROOT / 'tools' / 'setup' / 'cxx_precompiled.py'
# As ninja calls it: a second -c, and a dependency file.
ONE_OBJECT = (
    '-MMD -MF main.o.d -ggdb3 -Ofast -isystem include -c -c main.cpp '
    '-omain.o -std=c++17'
)
HEADER = '#pragma once\ninline int shared() { return 42; }\n'
MAIN = '#include <shared.h>\nint main() { return shared() - 42; }\n'


@pytest.fixture(params=filter(shutil.which, ('g++', 'clang++')), autouse=True)
def folder(request, tmp_path, monkeypatch):
    """Sources, and a compiler that notes its arguments in ``calls``."""
    monkeypatch.chdir(tmp_path)
    compiler = tmp_path / 'compiler'
    compiler.write_text(
        f'#!/bin/sh\necho "$@" >> calls\nexec {request.param} "$@"\n'
    )
    compiler.chmod(0o755)
    for name in ('precompiled', 'include'):
        (tmp_path / name).mkdir()
    (tmp_path / 'include' / 'shared.h').write_text(HEADER)
    (tmp_path / 'main.cpp').write_text(MAIN)
    return tmp_path


def wrapped(arguments, **env):
    """Call the wrapper; return how it ended and the compiler's calls."""
    usual = dict(
        MEGDET_CXX=os.path.abspath('compiler'),
        MEGDET_CXX_DIR=os.path.abspath('precompiled'),
        MEGDET_CXX_HEADER='shared.h',
        LC_ALL='C',
    )
    done = subprocess.run(
        [sys.executable, '-I', '-S', WRAPPER, *arguments.split()],
        env=os.environ | usual | env,
        capture_output=True,
        text=True,
    )
    with open('calls') as calls:
        return done, [line.split() for line in calls]


def test_object_is_compiled_with_the_precompiled_header(folder):
    # As torch's headers from 2.15 on, for mmcv which asks for C++17.
    newer = f'{HEADER}static_assert(__cplusplus > 201703L);'
    (folder / 'include' / 'shared.h').write_text(newer)
    # -H names the headers that are read as text.
    done, calls = wrapped(f'{ONE_OBJECT} -H', MEGDET_CXX_STD='c++20')
    assert done.returncode == 0
    assert 'include/shared.h' not in done.stderr
    header, source = map(set, calls)
    assert str(folder / 'precompiled/prefix.part') in header
    assert not {'main.cpp', 'main.o', 'main.o.d'} & header
    assert {'main.cpp', str(folder / 'precompiled/prefix.h')} <= source
    for call in header, source:
        assert {'-O2', '-g0', '-std=c++20'} <= call
        assert not {'-Ofast', '-ggdb3', '-std=c++17'} & call
    assert wrapped('main.o -o program')[0].returncode == 0
    assert subprocess.run([folder / 'program']).returncode == 0


def test_header_is_made_once_for_many_at_a_time(folder):
    for i in range(8):
        (folder / f'{i}.cpp').write_text('#include <shared.h>\n')
    words = [f'-Iinclude -c {i}.cpp' for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(wrapped, words))
    assert [one.returncode for one, _ in done] == [0] * 8
    assert (folder / 'calls').read_text().count('c++-header') == 1


def test_header_that_does_not_compile_leaves_the_plain_compiler():
    for _ in range(2):
        done, calls = wrapped(ONE_OBJECT, MEGDET_CXX_HEADER='not/there.h')
        assert done.returncode == 0
    assert ['c++-header' in call for call in calls] == [True, False, False]
    assert not any('-include' in call for call in calls)


def test_source_that_dislikes_the_header_is_compiled_plainly(folder):
    source = folder / 'main.cpp'
    source.write_text('int shared() { return 42; }\nint main() {}\n')
    done, calls = wrapped(ONE_OBJECT)
    assert (done.returncode, done.stderr) == (0, '')
    assert '-include' not in calls[-1]
    # What does not compile at all is reported once.
    source.write_text('int main() { return nothing; }\n')
    done, _ = wrapped(ONE_OBJECT)
    assert done.returncode == 1
    assert done.stderr.count('error:') == 1


@pytest.mark.parametrize(
    'words',
    ['-shared a.o -g -O3 -o a.so', '-E main.cpp', '-c main.cpp other.cpp -O3'],
)
def test_all_else_goes_through_unchanged(words):
    assert wrapped(words)[1] == [words.split()]
