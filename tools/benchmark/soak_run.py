# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains for ``soak.py`` with torchrun, and strikes the processes."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ITERATIONS_PER_EPOCH = 100  # soak_config.py's
PATIENCE = 300  # seconds without an iteration, or from a fault to the end
FAULTS = ('SIGKILL', 'SIGTERM')


class SoakError(RuntimeError):
    """Training did what it never should: hung, or ended by itself."""


@dataclass
class Fault:
    """What was done to a training, and what became of it.

    Attributes:
        signal (str): 'SIGKILL' to one rank, or 'SIGTERM' to every process.
        rank (int, optional): The rank killed.
        iteration (int): The last one that was seen to be done.
        seconds (float): Until the last process had ended.
        checkpoint (str): The name of that from which training goes on; empty
            if there is none yet.
    """

    signal: str
    rank: int | None
    iteration: int
    seconds: float
    checkpoint: str

    def __str__(self) -> str:
        whom = 'all processes' if self.rank is None else f'rank {self.rank}'
        return (
            f'{self.signal} to {whom} after iteration {self.iteration}: all '
            f'ended in {self.seconds:.1f} s, goes on from '
            f'{self.checkpoint or "the beginning"}'
        )


class Training:
    """A training of ``soak_config.py``, started as often as it takes.

    Args:
        folder (Path): Its work folder.
        ranks (int): Number of processes.
        **settings: Overrides of the config, with ``__`` for the dots.
    """

    def __init__(self, folder: Path, ranks: int, **settings: object) -> None:
        self.folder = folder
        self.starts = 0
        folder.mkdir(parents=True)
        self._command = [
            str(HERE.parent / 'dist_train.sh'),
            str(HERE / 'soak_config.py'),
            str(ranks),
            *('--work-dir', str(folder), '--resume', '--cfg-options'),
            *(f'{k.replace("__", ".")}={v}' for k, v in settings.items()),
        ]
        self._process: psutil.Popen | None = None

    def start(self) -> None:
        """Begin, or go on from the latest checkpoint."""
        self.starts += 1
        (self.folder / 'progress').unlink(missing_ok=True)
        paths = [str(HERE), os.environ.get('PYTHONPATH', '')]
        variables = dict(
            PYTHON=sys.executable,
            PYTHONPATH=os.pathsep.join(filter(None, paths)),
            CUDA_VISIBLE_DEVICES='-1',
        )
        with (self.folder / 'train.log').open('a') as log:
            self._process = psutil.Popen(
                self._command,
                env=dict(OMP_NUM_THREADS='1') | os.environ | variables,
                stdout=log,
                stderr=log,
            )

    def iteration(self) -> int:
        """Iterations done; 0 if none since the latest start."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.folder / 'progress').read_text())
        return 0

    def advance(self, target: float, show: Callable[[int], None]) -> bool:
        """Wait until an iteration is done, or training ends.

        Args:
            target (float): The iteration.
            show (Callable): Told the iterations done, now and then.

        Returns:
            bool: Whether the processes are still there.

        Raises:
            SoakError: If it ends with a status other than 0, or hangs.
        """
        seen, since = 0, time.monotonic()
        while (status := self._process.poll()) is None:
            done = self.iteration()
            if done >= max(target, 1):
                return True
            if done > seen:
                seen, since = done, time.monotonic()
                show(done)
            if time.monotonic() > since + PATIENCE:
                raise SoakError(
                    f'no iteration in {PATIENCE} s after iteration {seen}'
                    f'{self._end_of_log()}'
                )
            time.sleep(0.02)
        if status != 0:
            raise SoakError(
                f'nobody struck, and training ended with status {status} '
                f'after iteration {seen}{self._end_of_log()}'
            )
        return False

    def strike(self, name: str, dice: random.Random) -> Fault:
        """Plant a fault, and wait until every process has ended.

        Args:
            name (str): One of ``FAULTS``.
            dice (random.Random): Chooses the rank to be killed.

        Raises:
            SoakError: If a process does not end.
        """
        below = self._process.children(recursive=True)
        iteration, rank = self.iteration(), None
        begin = time.monotonic()
        if name == 'SIGKILL':
            ranks = self._process.children()
            rank = dice.randrange(len(ranks))
            ranks.sort(key=lambda process: int(process.environ()['RANK']))
            ranks[rank].kill()
        else:
            # As Slurm does: whoever belongs to the job.
            for process in [*below, self._process]:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs([self._process, *below], PATIENCE)
        if alive:
            raise SoakError(
                f'{PATIENCE} s after {name} these live on: {alive}'
                f'{self._end_of_log()}'
            )
        seconds = time.monotonic() - begin
        note = self.folder / 'last_checkpoint'
        checkpoint = Path(note.read_text()).name if note.is_file() else ''
        return Fault(name, rank, iteration, seconds, checkpoint)

    def end(self) -> None:
        """Kill what is left of it."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            below = self._process.children(recursive=True)
            for process in [self._process, *below]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def _end_of_log(self) -> str:
        path = self.folder / 'train.log'
        lines = path.read_text(errors='replace').splitlines()[-15:]
        return '\n'.join([f'. The end of {path}:', *lines])


def run_undisturbed(training: Training, show: Callable[[int], None]) -> int:
    """Trains to the end; returns the number of iterations.

    Raises:
        SoakError: As :meth:`Training.advance`.
    """
    try:
        training.start()
        training.advance(float('inf'), show)
        return training.iteration()
    finally:
        training.end()


def run_with_faults(
    training: Training,
    moments: list[int],
    dice: random.Random,
    show: Callable[[int], None],
    tell: Callable[[Fault], None],
) -> None:
    """Trains to the end, struck at some iterations and resumed each time.

    Args:
        training (Training): Not yet started.
        moments (list[int]): The iterations, in order. Each kind of fault is
            planted as often as the other, or once more.
        dice (random.Random): Chooses.
        show (Callable): Told the iterations done, now and then.
        tell (Callable): Told each fault.

    Raises:
        SoakError: As :meth:`Training.advance` and :meth:`Training.strike`.
    """
    names: list[str] = []
    try:
        for moment in moments:
            names = names or dice.sample(FAULTS, len(FAULTS))
            training.start()
            if not training.advance(moment, show):
                return
            tell(training.strike(names.pop(), dice))
        training.start()
        training.advance(float('inf'), show)
    finally:
        training.end()
