# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""torchrun's agent as we change it, with processes that need no torch."""

from __future__ import annotations

import signal
import subprocess
import time

import psutil
import pytest

from tests.tools.command import (
    PATIENCE,
    environment,
    free_port,
    wait_for_port,
)
from tests.tools.command import start as start_command

AGENT = """
import os, sys
from torch.distributed import DistStoreError, run
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from mmdet_megdet.upstream.torchrun_names import run_torchrun

def say(text):
    print(text, flush=True)

meet = SimpleElasticAgent._rendezvous

def leave_once(agent, group):
    SimpleElasticAgent._rendezvous = meet
    raise DistStoreError('wait timeout')

if 'LEAVE' in os.environ:
    SimpleElasticAgent._rendezvous = leave_once
run_torchrun(run.parse_args(sys.argv[1:]), lambda found: 1 in found, say)
"""
SCRIPT = """
import os, sys, time
print('ranks', os.environ['WORLD_SIZE'], flush=True)
while sys.argv[1] == 'stay' and not os.path.exists(sys.argv[3]):
    time.sleep(0.1)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def agent(tmp_path):
    """Starts an agent of the same job with one process."""
    (tmp_path / 'agent.py').write_text(AGENT)
    (tmp_path / 'script.py').write_text(SCRIPT)
    port = free_port()
    variables = environment(
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE='1',
        PET_RDZV_CONF='last_call_timeout=3,keep_alive_interval=1',
    )
    started = []

    def start(number, nodes, *arguments, **more):
        log = tmp_path / f'{number}.out'
        with log.open('w') as output:
            started.append(
                start_command(
                    *(tmp_path / 'agent.py', f'--nnodes={nodes}'),
                    *('--rdzv-backend=c10d', '--rdzv-id=job'),
                    *(f'--rdzv-endpoint=127.0.0.1:{port}', '--max-restarts=2'),
                    *(tmp_path / 'script.py', *arguments),
                    env=variables | more,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        if number == 1:
            # So that this one holds the rendezvous.
            wait_for_port(port)
        return started[-1], log

    yield start
    for process in started:
        for one in _tree(process):
            one.kill()


def _tree(process):
    if process.poll() is not None:
        return []
    parent = psutil.Process(process.pid)
    return [*parent.children(recursive=True), parent]


def wait_for(text, log):
    end = time.monotonic() + PATIENCE
    while text not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


@pytest.mark.parametrize(('status', 'starts'), [(1, 1), (69, 3)])
def test_restarts(agent, status, starts):
    """None after what would fail again, else as many as torchrun allows."""
    process, log = agent(1, '1:1', 'go', str(status))
    assert process.wait(PATIENCE) == 1
    assert log.read_text().count('ranks 1') == starts


def test_a_machine_that_leaves_while_they_meet(agent):
    process, log = agent(1, '1:1', 'go', '0', LEAVE='once')
    assert process.wait(PATIENCE) == 0
    assert 'they meet again\nranks 1' in log.read_text()


@pytest.mark.slow
def test_a_machine_that_is_gone_is_noticed(agent, tmp_path):
    """Though no process fails by it."""
    stop = tmp_path / 'stop'
    first, log = agent(1, '1:2', 'stay', '0', stop)
    second, other = agent(2, '1:2', 'stay', '0', stop)
    wait_for('ranks 2', log)
    wait_for('ranks 2', other)
    for one in _tree(second):
        one.send_signal(signal.SIGKILL)
    wait_for('1 of 2 machines are gone', log)
    stop.touch()
    assert first.wait(PATIENCE) == 0
    assert log.read_text().endswith('ranks 1\n')
