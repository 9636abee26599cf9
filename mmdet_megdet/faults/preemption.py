# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""SIGTERM: the machine is about to be taken away."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier
from mmengine.hooks import CheckpointHook, Hook
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..errors import REQUEUE_STATUS, ConfigError, Preempted
from ..runtime import hold_workers
from .checkpoint import AtomicCheckpointHook
from .rank_watch import RankWatchHook
from .setup import built_loops, check_setup

_AS_IT_IS = 'or leave SIGTERM as it is by default_hooks.preemption=None.'


@HOOKS.register_module()
class PreemptionHook(Hook):
    """On SIGTERM, let all ranks stop together with a checkpoint.

    - At each optimizer update the ranks agree, by an all-reduce of one number,
      whether one of them has got it.
    - After that update all pool BatchNorm's running statistics, rank 0 saves
      ``iter_N.pth`` as AtomicCheckpointHook does, and all end with status 75
      when it is whole. ``--resume`` continues with the next update.
    - If a rank has failed or is gone, a rank that got SIGTERM ends with
      status 69, even if it waits in a collective (``RankWatchHook``).
    - The dataloaders' workers heed SIGTERM from their training process alone.

    In a run without checkpoints the hook does nothing.
    """

    # Behind the schedulers, the EMA and a checkpoint of this iteration.
    priority = 'LOWEST'

    _signal: TerminationSignal | None = None

    def before_run(self, runner: Runner) -> None:
        """Shield the workers, ahead of hooks that look at the loader."""
        check_setup(runner)
        hold_workers(runner)
        for loop in built_loops(runner).values():
            shield_workers(loop.dataloader)

    def before_train(self, runner: Runner) -> None:
        """Catch SIGTERM from now on."""
        savers = [h for h in runner.hooks if isinstance(h, CheckpointHook)]
        if not savers:
            return
        (self._saver, *_), loop = savers, runner.train_loop
        if not isinstance(self._saver, AtomicCheckpointHook):
            raise ConfigError(
                f'PreemptionHook saves by AtomicCheckpointHook, not by '
                f'{type(self._saver).__name__}: set default_hooks.checkpoint.'
                f"type='AtomicCheckpointHook', {_AS_IT_IS}"
            )
        if isinstance(loop, EpochBasedTrainLoop):
            raise ConfigError(
                f'PreemptionHook saves inside an epoch, and '
                f'{type(loop).__name__} cannot go on there. Set train_cfg.'
                "type='UpdateTrainLoop' and train_dataloader.batch_sampler="
                f"dict(type='UpdateBatchSampler'), {_AS_IT_IS}"
            )
        self._signal = TerminationSignal()
        watchers = [h for h in runner.hooks if isinstance(h, RankWatchHook)]
        self._watch = watchers[0].watch if watchers else None
        if self._watch is not None:
            self._watch.asked_to_end = self._signal.received

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Agree after an update whether to stop; if so, save and stop."""
        if self._signal is None:
            return
        wrapper: Any = runner.optim_wrapper
        several = isinstance(wrapper, OptimWrapperDict)
        wrappers = wrapper.values() if several else [wrapper]
        if not all(one.should_update() for one in wrappers):
            return
        asked = torch.tensor(runner.rank + 1 if self._signal.received() else 0)
        all_reduce(asked, 'max')
        if asked:
            self._stop(runner, int(asked) - 1)

    def after_train(self, runner: Runner, **_: Any) -> None:
        """Restore the previous handling of SIGTERM."""
        if self._signal is not None:
            self._signal.restore()
            self._signal = None

    on_error = after_train

    def _stop(self, runner: Runner, rank: int) -> None:
        runner.call_hook('before_interrupt')
        path = self._saver.save_inside_epoch(runner)
        barrier()
        if self._watch is not None:
            self._watch.stop()
        # To the end of the process: where one rank ends with a status other
        # than 0, srun sends SIGTERM to the others, which are to keep theirs.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        runner.logger.warning(
            f'PreemptionHook: rank {rank} got SIGTERM. All ranks stop after '
            f'iteration {runner.iter + 1} with {path}, status '
            f'{REQUEUE_STATUS}; --resume continues.'
        )
        # As at the end of any run: logs and visualizers are closed.
        runner.call_hook('after_run')
        raise Preempted


class TerminationSignal:
    """Whether SIGTERM has come, which does nothing else from now on."""

    def __init__(self) -> None:
        self._received = False
        # Python runs a handler in the main thread, so not while that waits in
        # a collective; the wake-up pipe is written to nevertheless.
        self._pipe: tuple[int, ...] = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._handler = signal.signal(signal.SIGTERM, self._note)
        self._wakeup = signal.set_wakeup_fd(
            self._pipe[1], warn_on_full_buffer=False
        )

    def restore(self) -> None:
        """Let SIGTERM do again what it did before."""
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGTERM, self._handler)
        pipe, self._pipe = self._pipe, ()
        for end in pipe:
            os.close(end)

    def received(self) -> bool:
        """Return whether SIGTERM has come."""
        # Other signals' numbers come here too; the pipe may be empty, or
        # closed by another thread.
        with suppress(OSError):
            for end in self._pipe[:1]:
                if signal.SIGTERM in os.read(end, 1024):
                    self._received = True
        return self._received

    def _note(self, *_: object) -> None:
        self._received = True


def shield_workers(loader: DataLoader) -> None:
    """Let a loader's workers heed their training process's SIGTERM alone.

    Slurm sends it to all processes; a rank whose worker ends cannot save.
    """
    loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn)


def _start_worker(init: Callable[[int], None] | None, number: int) -> None:
    # What the training process has let go is its to end: the threads of a
    # process group are not here, and its end would wait for them for ever.
    gc.freeze()
    if init is not None:
        init(number)
    # A handler does not learn who sends; who waits for the signal does.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    wait = partial(_wait_for_end, os.getppid())
    threading.Thread(target=wait, daemon=True).start()


def _wait_for_end(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
