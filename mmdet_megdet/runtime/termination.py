# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""SIGTERM as a request: noted, answered later, kept from data workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from torch.utils.data import DataLoader

# "Try again": sysexits.h's EX_TEMPFAIL.
REQUEUE_STATUS = 75
# Another rank is gone, or could not be reached: EX_UNAVAILABLE.
RANK_LOST_STATUS = 69


class Preempted(SystemExit):
    """Training was asked to stop, and its checkpoint is written.

    The process then ends with status 75, for a requeue to go by.
    """

    def __init__(self) -> None:
        super().__init__(REQUEUE_STATUS)


class TerminationSignal:
    """Whether SIGTERM has come, told to any thread at once.

    Python runs a signal's handler in the main thread and between two
    instructions, so not while that waits in a collective. Python's wake-up
    pipe is written to nevertheless.
    """

    def __init__(self) -> None:
        self._received = False
        self._pipe: int | None = None

    def install(self) -> None:
        """From now on SIGTERM is noted and does nothing else."""
        self._pipe, write_end = os.pipe()
        self._write_end = write_end
        os.set_blocking(self._pipe, False)
        os.set_blocking(write_end, False)
        self._handler = signal.signal(signal.SIGTERM, self._note)
        self._wakeup = signal.set_wakeup_fd(
            write_end, warn_on_full_buffer=False
        )

    def restore(self) -> None:
        """SIGTERM does again what it did before."""
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGTERM, self._handler)
        pipe, self._pipe = self._pipe, None
        os.close(self._write_end)
        os.close(pipe)

    def ignore(self) -> None:
        """SIGTERM does nothing to the end of the process.

        Where one rank ends with a status other than 0, srun sends SIGTERM to
        the others, which are to keep their own status.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def received(self) -> bool:
        """Whether it has come since :meth:`install`."""
        if self._pipe is not None:
            # Other signals' numbers come here too.
            with suppress(BlockingIOError):
                if signal.SIGTERM in os.read(self._pipe, 1024):
                    self._received = True
        return self._received

    def _note(self, *_: object) -> None:
        self._received = True


def shield_workers(loader: DataLoader) -> None:
    """Lets a loader's workers heed their training process's SIGTERM alone.

    Slurm sends SIGTERM to all processes of a job, and a worker that it ends
    is an error in its training process, which then cannot save. Call it
    before the workers start.

    Args:
        loader (DataLoader): Its ``worker_init_fn`` is extended.
    """
    loader.worker_init_fn = partial(
        _start_worker, worker_init_fn=loader.worker_init_fn
    )


def _start_worker(
    worker_id: int, worker_init_fn: Callable[[int], None] | None
) -> None:
    if worker_init_fn is not None:
        worker_init_fn(worker_id)
    # A handler does not learn who sends; who waits for the signal does.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(
        target=_wait_for_end, args=(os.getppid(),), daemon=True
    ).start()


def _wait_for_end(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
