# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""torchrun's agent as we change it, with processes that need no torch.

That a machine is gone is noticed in ``tests/distributed/test_elastic.py``.
"""

import pytest

from tests.tools.command import free_port, run

# The first time that they meet, a machine leaves.
AGENT = """
import sys
from torch.distributed import DistStoreError, run
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from mmdet_megdet.upstream.torchrun_names import run_torchrun

meet = SimpleElasticAgent._rendezvous

def leave_once(agent, group):
    SimpleElasticAgent._rendezvous = meet
    raise DistStoreError('wait timeout')

SimpleElasticAgent._rendezvous = leave_once
run_torchrun(run.parse_args(sys.argv[1:]), lambda found: 1 in found, print)
"""


@pytest.mark.parametrize(
    ('status', 'ended', 'starts'), [(0, 0, 1), (1, 1, 1), (69, 1, 3)]
)
def test_restarts(tmp_path, status, ended, starts):
    """None after what would fail again, else as many as torchrun allows."""
    agent = tmp_path / 'agent.py'
    agent.write_text(AGENT)
    result = run(
        *(agent, '--nnodes=1:1', '--rdzv-backend=c10d', '--max-restarts=3'),
        *('--rdzv-id=job', f'--rdzv-endpoint=127.0.0.1:{free_port()}'),
        *('--no-python', 'sh', '-c', f'echo a start; exit {status}'),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE='1',
        PET_RDZV_CONF='last_call_timeout=3,keep_alive_interval=1',
        PYTHONUNBUFFERED='1',
    )
    assert result.returncode == ended
    _, _, behind = result.stdout.partition('they meet again\n')
    assert behind.count('a start\n') == starts
