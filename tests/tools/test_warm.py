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
"""


def look(*command, **kwargs):
    result = run(*command, **kwargs)
    assert result.returncode == 0, result.stdout
    return json.loads(result.stdout)


@pytest.mark.parametrize('kind', ['script', 'command', 'module'])
def test_they_find_what_a_fresh_one_finds(kind, tmp_path):
    (tmp_path / 'look.py').write_text(LOOK)
    command = dict(
        script=(tmp_path / 'look.py', 'a', '--b'),
        command=(sys.executable, '-c', LOOK, 'a'),
        module=(sys.executable, '-m', 'look', 'a'),
    )[kind]
    there = dict(cwd=tmp_path, HOME='/nowhere')
    warm, again = (look(*command, **there) for _ in range(2))
    cold = look(*command, **there, cold=True)
    assert (warm.pop('known'), cold.pop('known')) == (True, False)
    drawn = [x for each in (warm, again, cold) for x in each.pop('numbers')]
    assert len(set(drawn)) == 6
    assert warm['parent'] == os.getpid()
    # What importing mmdet sets, for all of its own.
    for env in (warm['env'], cold['env']):
        env.pop('KMP_INIT_AT_FORK', None)
        env.pop('KMP_DUPLICATE_LIB_OK', None)
    assert warm == cold


def test_what_is_read_at_the_start_needs_a_fresh_one():
    found = look(sys.executable, '-c', LOOK, OMP_NUM_THREADS='2')
    assert found['known'] is False
    assert found['env']['OMP_NUM_THREADS'] == '2'


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
