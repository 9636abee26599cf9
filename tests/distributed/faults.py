# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains with a fault ordered, and watches all processes come to their end."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from tests.tools import command
from tests.tools.command import PATIENCE, ROOT, TOOLS

CONFIG = ROOT / 'tests' / 'data' / 'faults_config.py'


class Outcome(NamedTuple):
    """How what was started ended, the ranks or torchrun, and what it said."""

    statuses: list[int]
    logs: list[str]


class Job:
    """Processes that train in one folder, which is made here."""

    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir
        self.processes: list[subprocess.Popen] = []
        work_dir.mkdir(exist_ok=True)

    def start(
        self, name: str, tool: str, *options: object, **variables: str
    ) -> subprocess.Popen:
        """Start one of ``tools/``, or a path; it prints to ``<name>.out``."""
        with (self.work_dir / f'{name}.out').open('w') as output:
            process = command.start(
                TOOLS / tool,
                *options,
                env=command.environment(**variables),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def wait_for(self, name: str, text: str = '') -> None:
        """Until a file of the work folder is there, and holds a text."""
        path, end = self.work_dir / name, time.monotonic() + PATIENCE
        while not (path.exists() and text in path.read_text()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def descendants(self) -> list[psutil.Process]:
        """All processes of the run, what was started first."""
        found = []
        for process in self.processes:
            # The number of one that has ended may be somebody else's.
            if process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(process.pid))
                    found += command.descendants(process.pid)
        return found

    def logs(self) -> list[str]:
        return [p.read_text() for p in sorted(self.work_dir.glob('*.out'))]

    def finish(self) -> Outcome:
        """Wait until all processes have ended, workers included."""
        end = time.monotonic() + PATIENCE
        known: set[psutil.Process] = set()
        try:
            while True:
                known.update(self.descendants())
                polled = [process.poll() for process in self.processes]
                alive = list(filter(_lives, known))
                if None not in polled and not alive:
                    return Outcome(polled, self.logs())
                assert time.monotonic() < end, (alive, self.logs())
                time.sleep(0.05)
        finally:
            send(known, signal.SIGKILL)


class Run(Job):
    """A training of two ranks, started one by one, as srun does.

    Args:
        work_dir (Path): Its folder.
        *options (str): Of ``tools/train.py``, ahead of the settings.
        config (Path): Defaults to ``faults_config.py``.
        torchrun (bool): Whether ``tools/dist_train.sh`` starts the ranks.
        **settings: Overrides of the config, with ``__`` for the dots.
    """

    def __init__(
        self,
        work_dir: Path,
        *options: str,
        config: Path = CONFIG,
        torchrun: bool = False,
        **settings: object,
    ) -> None:
        super().__init__(work_dir)
        words = ['--work-dir', work_dir, *options]
        if settings:
            words += ['--cfg-options']
        words += [f'{k.replace("__", ".")}={v}' for k, v in settings.items()]
        if torchrun:
            self.start('torchrun', 'dist_train.sh', config, 2, *words)
            return
        words = ['train.py', config, *words, '--launcher', 'pytorch']
        port = command.free_port()
        for rank in '01':
            place = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE='2')
            place |= dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
            self.start(f'rank_{rank}', *words, **place)


def fault(place: str, **options: object) -> dict[str, object]:
    """Settings of the run's ``FaultHook``."""
    options |= dict(place=place)
    return {f'default_hooks__fault__{k}': v for k, v in options.items()}


def train(work_dir: Path, *options: str) -> str:
    """Train to the end; return what the ranks printed."""
    statuses, logs = Run(work_dir, *options).finish()
    assert statuses == [0, 0], logs
    return '\n'.join(logs)


def assert_same_end(work_dir: Path, undisturbed: Path) -> None:
    """The run ended with the undisturbed one's state, bit for bit."""
    ends = [torch.load(f / 'epoch_3.pth') for f in (work_dir, undisturbed)]
    states = ((end['state_dict'], end['optimizer']['state']) for end in ends)
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert ends[0]['param_schedulers'] == ends[1]['param_schedulers']


def diary(work_dir: Path, rank: int) -> list[str]:
    """What a rank trained on, a line a micro-step."""
    return (work_dir / f'diary_{rank}.txt').read_text().splitlines()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def send(processes: Iterable, number: signal.Signals) -> None:
    """Send a signal to those processes that are still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(number)
