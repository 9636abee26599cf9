# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains with a fault ordered, and watches all processes come to their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from tests.tools.command import (
    PATIENCE,
    ROOT,
    TOOLS,
    descendants,
    environment,
    free_port,
    start,
)

CONFIG = ROOT / 'tests' / 'data' / 'faults_config.py'


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        statuses (list[int]): Of what was started: the ranks, or torchrun.
        logs (list[str]): What each of them printed.
        seconds (float): From the fault, or else the start, to the end of the
            last process.
    """

    statuses: list[int]
    logs: list[str]
    seconds: float


class Run:
    """A training of two ranks, or of one process.

    Args:
        work_dir (Path): Its folder, made here.
        *options (str): Of ``tools/train.py``, ahead of the settings.
        torchrun (bool): Whether ``tools/dist_train.sh`` starts the ranks.
            Defaults to False: they are started one by one, as srun does.
        ranks (int): Their number. Defaults to 2.
        **settings: Overrides of the config, with ``__`` for the dots.
    """

    def __init__(
        self,
        work_dir: Path,
        *options: str,
        torchrun: bool = False,
        ranks: int = 2,
        **settings: object,
    ) -> None:
        self.work_dir = work_dir
        self.began = time.time()
        self.processes: list[subprocess.Popen] = []
        work_dir.mkdir(exist_ok=True)
        options = ('--work-dir', str(work_dir), *options)
        if settings:
            options += ('--cfg-options',)
        for name, value in settings.items():
            options += (f'{name.replace("__", ".")}={value}',)
        if torchrun:
            self.start('torchrun', 'dist_train.sh', CONFIG, ranks, *options)
            return
        if ranks > 1:
            options = ('--launcher', 'pytorch', *options)
        meeting = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port())
        for rank in map(str, range(ranks)):
            place = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(ranks))
            command = ('train.py', CONFIG, *options)
            self.start(f'rank_{rank}', *command, **meeting, **place)

    def start(
        self, name: str, tool: str, *options: object, **variables: str
    ) -> subprocess.Popen:
        """Start one of ``tools/``, which prints to ``<name>.out``."""
        with (self.work_dir / f'{name}.out').open('w') as output:
            process = start(
                TOOLS / tool,
                *options,
                env=environment(**variables),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def wait_for(self, text: str, name: str) -> None:
        """Until a file of the work folder holds a text."""
        path, end = self.work_dir / name, time.monotonic() + PATIENCE
        while not (path.exists() and text in path.read_text()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def descendants(self) -> list[psutil.Process]:
        """All processes of the run, what was started first."""
        found = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                found += [parent, *descendants(process.pid)]
        return found

    def logs(self) -> list[str]:
        return [
            path.read_text() for path in sorted(self.work_dir.glob('*.out'))
        ]

    def finish(self) -> Outcome:
        """Wait until all processes have ended, workers included."""
        end = time.monotonic() + PATIENCE
        known: dict[int, psutil.Process] = {}
        try:
            while True:
                known |= {p.pid: p for p in self.descendants()}
                polled = [process.poll() for process in self.processes]
                alive = [p for p in known.values() if _lives(p)]
                if None not in polled and not alive:
                    break
                assert time.monotonic() < end, (alive, self.logs())
                time.sleep(0.05)
        finally:
            for process in known.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        note = self.work_dir / 'struck'
        since = float(note.read_text()) if note.exists() else self.began
        return Outcome(polled, self.logs(), time.time() - since)


def resume(work_dir: Path) -> str:
    """Resumes to the end of training; returns what the ranks printed."""
    outcome = Run(work_dir, '--resume').finish()
    assert outcome.statuses == [0, 0], outcome.logs
    return '\n'.join(outcome.logs)


def assert_same_end(work_dir: Path, undisturbed: Path) -> None:
    """The run ended with the undisturbed one's state, bit for bit."""
    ours, expected = (
        torch.load(folder / 'epoch_3.pth')
        for folder in (work_dir, undisturbed)
    )
    for part in (
        lambda end: end['state_dict'],
        lambda end: end['optimizer']['state'],
    ):
        torch.testing.assert_close(part(ours), part(expected), rtol=0, atol=0)
    assert ours['param_schedulers'] == expected['param_schedulers']


def diary(work_dir: Path, rank: int) -> list[str]:
    """What a rank trained on, a line an iteration."""
    return (work_dir / f'diary_{rank}.txt').read_text().splitlines()


def record(fault: str, outcome: Outcome) -> None:
    """A row of the table of faults in docs/faults.md (pytest -s)."""
    print(f'\nFAULT {fault}: {outcome.seconds:.1f} s, {outcome.statuses}')


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Sends a signal to those that are still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
