# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torchrun: its agent, one on each machine of a job."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection
from functools import partial
from typing import Any
from unittest.mock import patch

from torch.distributed import DistStoreError, run
from torch.distributed.elastic.agent import server
from torch.distributed.launcher import api


def run_torchrun(
    args: Namespace,
    would_fail_again: Callable[[Collection[int]], bool],
    warn: Callable[[str], None],
) -> None:
    """Run torchrun, with an agent that tells failures from lost machines.

    torchrun's own restarts its processes whatever they end with, overlooks
    a machine that is gone while no process fails by it, ends where one is gone
    in the rendezvous, and gives processes 30 s to stop ahead of a restart.

    ``would_fail_again`` is asked with the statuses of this machine's
    processes; if it says so the job ends, on all machines.
    """
    agent = partial(_Agent, would_fail_again, warn)
    with patch.object(api, 'LocalElasticAgent', agent):
        run.run(args)


class _Agent(api.LocalElasticAgent):
    def __init__(
        self,
        would_fail_again: Callable[[Collection[int]], bool],
        warn: Callable[[str], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._would_fail_again, self._warn = would_fail_again, warn

    def _monitor_workers(
        self, worker_group: server.WorkerGroup
    ) -> server.RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state == server.WorkerState.FAILED:
            statuses = [f.exitcode for f in result.failures.values()]
            if self._would_fail_again(statuses):
                self._remaining_restarts = 0
        elif result.state == server.WorkerState.HEALTHY:
            machines = worker_group.group_world_size or 0
            # Of whom torchrun has heard in the last 15 s.
            handler: Any = self._rdzv_handler
            state = handler._state_holder.state
            there = len(state.participants)
            # Closed by a machine that is done, it is left by all.
            if there < machines and not state.closed:
                gone = machines - there
                self._warn(f'{gone} of {machines} machines are gone')
                return server.RunResult(state=server.WorkerState.UNHEALTHY)
        return result

    def _rendezvous(self, worker_group: server.WorkerGroup) -> None:
        while True:
            try:
                super()._rendezvous(worker_group)
                return
            except DistStoreError:
                if self._remaining_restarts == 0:
                    raise
                self._remaining_restarts -= 1
                self._warn('a machine left while they met; they meet again')

    def _stop_workers(
        self, worker_group: server.WorkerGroup, **older: bool
    ) -> None:
        timeout = getattr(self, '_shutdown_timeout', None)
        if timeout is None:  # torch 2.6 and 2.8, whose processes have 30 s
            super()._stop_workers(worker_group, **older)
        else:
            self._shutdown(timeout=timeout)
