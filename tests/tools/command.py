# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Runs the project's command-line tools as a user does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / 'tools'
TINY_CONFIG = ROOT / 'tests' / 'data' / 'tiny_config.py'


def run(
    *command: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess:
    """Runs a command with this interpreter, without a GPU, from anywhere.

    Args:
        *command: Program and arguments; a ``.py`` file is run by this
            interpreter.
        cwd (Path, optional): Working directory. Defaults to None: this one.
        **variables: Further environment variables.

    Returns:
        subprocess.CompletedProcess: With stdout and stderr together, as
            text, in ``stdout``.
    """
    command = [str(word) for word in command]
    if command[0].endswith('.py'):
        command.insert(0, sys.executable)
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            _kill_tree(process.pid)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def _kill_tree(pid: int) -> None:
    # torchrun starts its ranks in sessions of their own.
    process = psutil.Process(pid)
    for one in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def environment(**variables: str) -> dict[str, str]:
    """This process's environment, clean of any distributed run."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(('SLURM_', 'MASTER_', 'TORCH', 'PYTHONPATH'))
        and name not in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'NNODES', 'PORT')
    }
    clean |= dict(
        PYTHON=sys.executable,
        # For the configs' `tests.data`: an installed package does not bring
        # the tests along.
        PYTHONPATH=str(ROOT),
        OMP_NUM_THREADS='1',
        CUDA_VISIBLE_DEVICES='-1',
    )
    return clean | variables


def free_port() -> str:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def wait_for_port(port: str, seconds: float = 300) -> None:
    """Until somebody listens there."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(('127.0.0.1', int(port))).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.1)
