# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Runs the project's command-line tools as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


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
