# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Building mmcv's wheel, with its ops, from the sdist.

Runs in the venv, where torch, ninja and rich are. A build that was
interrupted goes on where it stopped.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from compile_log import last_error, progress
from errors import SetupError
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

WRAPPER = Path(__file__).resolve().parent / 'cxx_precompiled.py'


def find_compiler(env: Mapping[str, str] = os.environ) -> str:
    """The C++ compiler's command: CXX, or else the first that is there.

    Raises:
        SetupError: If there is none, or Python's own headers are missing.
    """
    command = env.get('CXX')
    if command:
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            raise SetupError(f'CXX={command} is not a program that runs')
    else:
        found = filter(shutil.which, ('g++', 'c++', 'clang++'))
        command = next(found, None)
    if command is None:
        raise SetupError(
            'no C++ compiler to build mmcv with. Install one (on Debian and '
            'Ubuntu: g++), or point MEGDET_WHEELHOUSE to a folder with a '
            'fitting mmcv wheel.'
        )
    headers = Path(sysconfig.get_path('include'))
    if not (headers / 'Python.h').is_file():
        version = '{}.{}'.format(*sys.version_info)
        raise SetupError(
            f'Python.h is missing in {headers}: mmcv cannot be compiled. '
            "Install Python's headers (on Debian and Ubuntu: "
            f'python{version}-dev).'
        )
    return command


def fetch_source(requirement: str, folder: Path) -> Path:
    """Download and unpack the sdist, unless an earlier try has done so."""
    source = folder / 'source'
    if not source.is_dir():
        pip = [sys.executable, '-m', 'pip', 'download', '-q', '-d', folder]
        options = ['--no-deps', '--no-build-isolation', '--no-binary', ':all:']
        if subprocess.run([*pip, *options, requirement]).returncode:
            raise SetupError(f'the sdist of {requirement} was not to be had')
        (archive,) = folder.glob('mmcv-*.tar.gz')
        unpacked = folder / 'unpacked'
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked)
        (inner,) = unpacked.iterdir()
        inner.rename(source)
    return source


def build_environment(compiler: str, folder: Path, archs: str | None) -> dict:
    """The environment for mmcv's ``setup.py``.

    Args:
        compiler (str): The C++ compiler's command.
        folder (Path): Existing; takes the compiler wrapper and its header.
        archs (str | None): Compute capabilities for CUDA ops, or None.
    """
    launcher = folder / 'cxx'
    # torch asks its compiler for one word; the wrapper has two.
    words = shlex.join([sys.executable, '-I', '-S', str(WRAPPER)])
    launcher.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    launcher.chmod(0o755)
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ('PYTHONPATH', 'PYTHONHOME')
    }
    programs = Path(sys.executable).parent  # ninja
    env.update(
        PATH=f'{programs}{os.pathsep}{env.get("PATH", "")}',
        CXX=str(launcher),
        MEGDET_CXX=compiler,
        MEGDET_CXX_DIR=str(folder),
        MMCV_WITH_OPS='1',
        FORCE_CUDA='1' if archs else '0',
        LC_ALL='C',
    )
    env.setdefault('MAX_JOBS', str(len(os.sched_getaffinity(0))))
    if archs:
        env['TORCH_CUDA_ARCH_LIST'] = archs
    return env


class Report:
    """Shows ``n/total`` and the time that is left, on any kind of output.

    Args:
        console (Console): Where to; a terminal gets a bar, others lines.
        clock (Callable): Gives the time in seconds.
    """

    interval = 10  # seconds between lines

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console
        self.clock = clock
        # The first file's end: before it the shared header is compiled,
        # which says nothing of the files to come.
        self.first: tuple[float, int] | None = None
        self.said = clock()
        self.bar = Progress(
            TextColumn('compiling mmcv'),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn('left:'),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task('', total=None)

    def update(self, done: int, total: int) -> None:
        """Take the number of files compiled so far."""
        self.bar.update(self.task, completed=done, total=total)
        if self.console.is_terminal:
            return
        now = self.clock()
        self.first = self.first or (now, done)
        began, done_then = self.first
        if done < total and now - self.said < self.interval:
            return
        self.said = now
        text = f'compiling mmcv: {done}/{total}'
        if done > done_then:
            left = (now - began) * (total - done) / (done - done_then)
            text += f', about {left:.0f} s left'
        self.console.print(text, highlight=False)


def compile_wheel(
    source: Path, out: Path, env: Mapping[str, str], log: Path
) -> Path:
    """Run mmcv's ``setup.py bdist_wheel``, showing how far it is.

    Raises:
        SetupError: If it fails, with the last error and the log's place.
    """
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, '-u', 'setup.py', 'bdist_wheel', '-d', out]
    report = Report(Console())
    print(f"compiling mmcv: torch's headers first; log: {log}", flush=True)
    with log.open('w') as file, report.bar:
        process = subprocess.Popen(
            command,
            cwd=source,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
        )
        try:
            for line in process.stdout:
                file.write(line)
                step = progress(line)
                if step:
                    report.update(*step)
        except BaseException:
            process.terminate()
            raise
        finally:
            code = process.wait()
    wheels = list(out.glob('*.whl'))
    if code or len(wheels) != 1:
        error = last_error(log.read_text())
        hint = ''
        if 'Killed signal' in error:
            hint = 'Memory ran out: try again with MAX_JOBS=1.\n'
        raise SetupError(
            f'mmcv could not be built. The last error:\n{error}\n{hint}'
            f'The whole log: {log}'
        )
    return wheels[0]


def build(
    requirement: str, folder: Path, log: Path, archs: str | None
) -> Path:
    """Build the wheel in ``folder``, which the caller removes.

    Args:
        requirement (str): 'mmcv==2.1.0'.
        folder (Path): Kept when the build fails or is interrupted, it lets
            the next one go on.
        log (Path): Takes all that the build prints.
        archs (str | None): Compute capabilities for CUDA ops, or None.
    """
    compiler = find_compiler()
    precompiled = folder / 'precompiled'
    precompiled.mkdir(parents=True, exist_ok=True)
    # Last time's reason may be gone.
    (precompiled / 'failed').unlink(missing_ok=True)
    source = fetch_source(requirement, folder)
    env = build_environment(compiler, precompiled, archs)
    return compile_wheel(source, folder / 'dist', env, log)
