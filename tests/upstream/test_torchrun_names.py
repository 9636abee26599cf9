# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""torchrun's agent as we change it, with processes that need no torch.

That a machine is gone is noticed in ``tests/distributed/test_elastic.py``.
"""

from __future__ import annotations

import pytest

from tests.tools.command import free_port, run

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
import os, sys
print('ranks', os.environ['WORLD_SIZE'], flush=True)
sys.exit(int(sys.argv[1]))
"""


def run_agent(tmp_path, status, **variables):
    (tmp_path / 'agent.py').write_text(AGENT)
    (tmp_path / 'script.py').write_text(SCRIPT)
    return run(
        *(tmp_path / 'agent.py', '--nnodes=1:1', '--rdzv-backend=c10d'),
        *('--rdzv-id=job', f'--rdzv-endpoint=127.0.0.1:{free_port()}'),
        *('--max-restarts=2', tmp_path / 'script.py', str(status)),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE='1',
        PET_RDZV_CONF='last_call_timeout=3,keep_alive_interval=1',
        **variables,
    )


@pytest.mark.parametrize(('status', 'starts'), [(1, 1), (69, 3)])
def test_restarts(tmp_path, status, starts):
    """None after what would fail again, else as many as torchrun allows."""
    ended = run_agent(tmp_path, status)
    assert ended.returncode == 1
    assert ended.stdout.count('ranks 1') == starts


def test_a_machine_that_leaves_while_they_meet(tmp_path):
    ended = run_agent(tmp_path, 0, LEAVE='once')
    assert ended.returncode == 0
    assert 'they meet again\nranks 1' in ended.stdout
