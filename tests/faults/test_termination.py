# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
import signal
import subprocess
import time

import psutil
from torch.utils.data import DataLoader

from mmdet_megdet.faults.preemption import TerminationSignal, shield_workers


def test_the_signal_is_noted_and_given_back():
    before = signal.getsignal(signal.SIGTERM)
    # Whoever runs the tests may have one.
    wakeup = signal.set_wakeup_fd(-1)
    termination = TerminationSignal()
    termination.install()
    try:
        # Another signal's number goes through the same pipe.
        previous = signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, previous)
        assert not termination.received()
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.received()
        assert termination.received()
    finally:
        termination.restore()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(wakeup) == -1


class Pids:
    """The process that loads, slowly."""

    def __len__(self):
        return 4

    def __getitem__(self, _):
        time.sleep(0.2)
        return os.getpid()


def began(worker_id):
    assert worker_id == 0


def test_workers_heed_their_own_process_alone():
    loader = DataLoader(Pids(), num_workers=1, worker_init_fn=began)
    shield_workers(loader)
    batches = iter(loader)
    worker = next(batches).item()
    subprocess.run(['kill', '-TERM', str(worker)], check=True)
    assert [batch.item() for batch in batches] == [worker] * 3

    batches = iter(loader)
    worker = psutil.Process(next(batches).item())
    worker.terminate()
    # DataLoader takes a status of 0 for an orderly end.
    assert worker.wait(5) == 0
