# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Runs the project's command-line tools as a user does."""

import functools
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.tools.warm import SERVER_NAME, WarmPopen

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / 'tools'
TINY_CONFIG = ROOT / 'tests' / 'data' / 'tiny_config.py'
PATIENCE = 600  # seconds until a test gives up
# Variables that are read when Python or a library starts.
START = ('PYTHON', 'OMP_', 'CUDA_', 'TRITON_', 'TORCH_DISTRIBUTED_')


def start(
    *command: str | Path,
    env: dict[str, str],
    cold: bool = False,
    **kwargs: Any,
) -> subprocess.Popen:
    """Start a command; a ``.py`` file is run by this interpreter.

    ``cold`` starts it as a user does, with a fresh interpreter for each
    process. Otherwise what Python there is begins with torch and mmdet
    imported (``warm.py``), unless it would differ in what is read at its
    start.
    """
    words = [str(word) for word in command]
    if words[0].endswith('.py'):
        words.insert(0, sys.executable)
    if cold or _read_at_start(env) != _read_at_start(environment()):
        return subprocess.Popen(words, env=env, **kwargs)
    if Path(words[0]).match('tools/dist_*.sh'):
        recorder = dict(PYTHON=str(Path(__file__).with_name('recorder.py')))
        done = subprocess.run(words, env=env | recorder, capture_output=True)
        # Unless it refuses, this is what the launcher becomes.
        if done.returncode == 0:
            arguments, exported = json.loads(done.stdout)
            words = [sys.executable, *arguments]
            env = exported | dict(PYTHON=sys.executable)
    if words[0] == sys.executable:
        return WarmPopen(_server(), words, env=env, **kwargs)
    return subprocess.Popen(words, env=env, **kwargs)


def _read_at_start(env: dict[str, str]) -> dict[str, str]:
    return {name: v for name, v in env.items() if name.startswith(START)}


@functools.cache
def _server() -> socket.socket:
    """The way to a server, which ends with this process."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, '-m', 'tests.tools.warm', str(theirs.fileno())],
            env=environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours


def run(
    *command: str | Path,
    cwd: Path | None = None,
    cold: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess:
    """Run a command as ``start`` does, without a GPU.

    Further environment variables are given by name. The result has stdout and
    stderr together, as text, in ``stdout``.
    """
    with start(
        *command,
        env=environment(**variables),
        cold=cold,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            output, _ = process.communicate()
            raise AssertionError(
                f'no end after {PATIENCE} s: {output}'
            ) from None
    return subprocess.CompletedProcess(
        process.args, process.returncode, output
    )


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below one, without the servers of ``warm.py``."""
    return [
        one
        for one in psutil.Process(pid).children(recursive=True)
        if one.name() != SERVER_NAME
    ]


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, whatever their sessions."""
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


def cells(text: str) -> list[list[str]]:
    """Rows of the tables in a text, Markdown's or rich's."""
    rows = re.findall('^[|│] (.*) [|│]$', text, re.M)
    return [[cell.strip() for cell in re.split('[|│]', r)] for r in rows]


def free_port() -> str:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def wait_for_port(port: str, seconds: float = PATIENCE) -> None:
    """Until somebody listens there."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(('127.0.0.1', int(port))).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.1)
