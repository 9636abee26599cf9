# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Warm processes are like those that a user starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest

from tests.tools.command import (
    PATIENCE,
    descendants,
    environment,
    run,
    start,
)

# What a process finds.
LOOK = """
import json, os, random, signal, sys
import numpy
known = 'mmdet' in sys.modules
print(json.dumps(dict(
    known=known, argv=sys.argv, path=sys.path, name=__name__, cwd=os.getcwd(),
    parent=os.getppid(), env=dict(os.environ), executable=sys.executable,
    term=signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    interrupt=signal.getsignal(signal.SIGINT) == signal.default_int_handler,
    files=sorted(os.listdir('/proc/self/fd')), session=os.getsid(0),
    numbers=[random.random(), numpy.random.rand()],
    threads=len(os.listdir('/proc/self/task')),
)))
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
    assert [each.pop('known') for each in found] == [True, True, False, False]
    drawn = [number for each in found for number in each.pop('numbers')]
    assert len(set(drawn)) == len(drawn)
    # What importing mmdet sets, for all of its own.
    for each in found:
        each['env'].pop('KMP_INIT_AT_FORK', None)
        each['env'].pop('KMP_DUPLICATE_LIB_OK', None)
    warm, _, cold, other = found
    assert warm['parent'] == os.getpid()
    assert warm == cold
    assert other['env'] == cold['env'] | dict(OMP_NUM_THREADS='2')


RANK = """
import json, os, signal, sys
assert 'mmdet' in sys.modules
print(json.dumps([os.environ['RANK'], os.getppid(), sys.argv[1:]]))
signal.pause()
"""


def test_ranks_belong_to_torchrun(tmp_path):
    script = tmp_path / 'rank.py'
    script.write_text(RANK)
    with start(
        *(sys.executable, '-m', 'torch.distributed.run', '--standalone'),
        *('--nproc-per-node=2', script, 'a'),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        said = sorted(json.loads(agent.stdout.readline()) for _ in range(2))
        assert said == [[rank, agent.pid, ['a']] for rank in '01']
        ranks = descendants(agent.pid)
        assert len(ranks) == 2
        (server,) = {*psutil.Process(agent.pid).children()} - {*ranks}
        agent.kill()
        # torchrun's ranks do not end with it; the server does.
        assert psutil.wait_procs([server], PATIENCE)[1] == []
        for rank in ranks:
            rank.kill()
