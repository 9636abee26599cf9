# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Warm processes are like those that a user starts."""

import json
import os
import sys

import pytest

from tests.tools.command import run

# What a process finds.
LOOK = """
import json, os, random, signal, sys
import numpy
print(json.dumps([
    'mmdet' in sys.modules, random.random(), numpy.random.rand(), sys.argv,
    sys.path, sys.executable, __name__, os.getcwd(), os.getppid(),
    sorted(os.listdir('/proc/self/fd')), os.listdir('/proc/self/task')[1:],
    signal.getsignal(signal.SIGTERM), os.getsid(0),
    signal.getsignal(signal.SIGINT) == signal.default_int_handler,
    # mmdet sets some, for all of its own.
    {k: v for k, v in os.environ.items() if not k.startswith('KMP_')},
]))
sys.exit(7)
"""


@pytest.mark.parametrize('script', [True, False])
def test_they_find_what_a_fresh_one_finds(script, tmp_path):
    (tmp_path / 'look.py').write_text(LOOK)
    command = [tmp_path / 'look.py'] if script else [sys.executable, '-m']
    there = dict(cwd=tmp_path, HOME='/nowhere')
    found = []
    # Another number of threads is read when torch is imported.
    for more in ({}, {}, dict(cold=True), dict(OMP_NUM_THREADS='2')):
        result = run(*command, 'look', '--b', **there | more)
        assert result.returncode == 7, result.stdout
        found.append(json.loads(result.stdout))
    imported, *drawn = zip(*(each[:3] for each in found), strict=True)
    assert imported == (True, True, False, False)
    assert [len({*numbers}) for numbers in drawn] == [4, 4]
    assert found[0][3:] == found[2][3:]
    assert found[0][8] == os.getpid()
