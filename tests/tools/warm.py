# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Processes that begin with torch and mmdet imported, which takes 10 s of CPU.

A server imports them once and forks a process for each command. That process
is the caller's own child, with its own signals and status, ends as any Python
does, and differs from a plain start in nothing but what is imported already:

- The server forks twice, and the first of the two ends. The second one then
  belongs to the nearest 'child subreaper' above, which the caller is for that
  moment (``man 2 prctl``).
- Variables that Python and libraries read when they start must be those of
  the server; with others ``WarmPopen`` starts a fresh interpreter.
- A launcher (``tools/dist_*.sh``) runs until it would exec Python; the process
  then does what it was about to start. It is torchrun, whose ranks come from
  a server of its own: a copy of this one, and torchrun's child.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = [
    str(ROOT / 'tools' / f'dist_{name}.sh')
    for name in ('train', 'test', 'doctor')
]
AGENTS = ('torch.distributed.run', str(ROOT / 'tools' / 'elastic.py'))
SERVER_NAME = 'warm-server'
MODULES = (
    *('torch._dynamo', 'torch.distributed.launcher.api'),
    *('torch.distributed.elastic.multiprocessing', 'mmcv.ops'),
    *('mmengine.runner', 'mmdet.apis', 'mmdet.datasets', 'mmdet.engine'),
    *('mmdet.evaluation', 'mmdet.models', 'mmdet.utils'),
    *('mmdet.visualization', 'mmdet_megdet.cli', 'mmdet_megdet.hooks'),
)
# Variables that are read when Python or a library starts.
START = ('PYTHON', 'OMP_', 'CUDA_', 'TRITON_', 'TORCH_DISTRIBUTED_')
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class Request(NamedTuple):
    """What a process is to do, with arguments of Python or of a launcher."""

    arguments: list[str]
    cwd: str
    env: dict[str, str]
    new_session: bool


class Server:
    """The caller's end of a server, which ends when its channel is closed."""

    def __init__(self, channel: socket.socket, env: dict[str, str]) -> None:
        self.channel = channel
        self.start = _read_at_start(env)

    def can_run(self, words: list[str], env: dict[str, str]) -> bool:
        """Return whether a process of it is as good as a fresh one."""
        if _read_at_start(env) != self.start:
            return False
        program = words[2] if words[1:2] == ['-u'] else ''.join(words[1:2])
        python = program in ('-m', '-c') or program.endswith('.py')
        return words[0] in LAUNCHERS or (words[0] == sys.executable and python)

    def fork(self, request: Request, files: list[int]) -> int:
        """Start a process with these as 0, 1 and 2; return its number."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            data = json.dumps(request).encode()
            socket.send_fds(self.channel, [data], files)
            return int(self.channel.recv(99))
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)


def start_server(env: dict[str, str]) -> Server:
    """Start a server with this environment, as a child of this process."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return Server(ours, env)


class WarmPopen(subprocess.Popen):
    """A ``Popen`` whose Python comes from a server, where that can run it."""

    def __init__(self, server: Server, args: Any, **kwargs: Any) -> None:
        self._server = server
        super().__init__([str(word) for word in args], **kwargs)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        # In this order since Python 3.7.
        cwd, env, files, new_session = rest[4], rest[5], rest[9:15], rest[20]
        env = dict(os.environ if env is None else env)
        if not self._server.can_run(args, env):
            return super()._execute_child(args, *rest)
        arguments = args if args[0] in LAUNCHERS else args[1:]
        request = Request(
            arguments, os.path.abspath(cwd or '.'), env, new_session
        )
        # The child's ends: of stdin what it reads from, of the others what it
        # writes to.
        wanted = (files[0], files[3], files[5])
        given = [n if one == -1 else one for n, one in enumerate(wanted)]
        try:
            self.pid = self._server.fork(request, given)
            self._child_created = True
        finally:
            self._close_pipe_fds(*files)
        return None


def _read_at_start(env: dict[str, str]) -> dict[str, str]:
    return {name: v for name, v in env.items() if name.startswith(START)}


def _prctl(option: int, value: Any) -> None:
    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0) != 0:
        raise OSError('prctl failed')


def _serve(channel: socket.socket) -> Request:
    """Fork processes until the caller is gone; returns in each of them."""
    _prctl(PR_SET_NAME, SERVER_NAME.encode())
    # Threads do not come along into a fork.
    assert len(os.listdir('/proc/self/task')) == 1
    while True:
        data, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not data:
            os._exit(0)
        pid = _fork_twice()
        if pid == 0:
            break
        channel.send(str(pid).encode())
        for descriptor in files:
            os.close(descriptor)
    channel.close()
    request = Request(*json.loads(data))
    if request.new_session:
        os.setsid()
    for target, source in enumerate(files):
        os.dup2(source, target)
        os.close(source)
    _prctl(PR_SET_NAME, b'python')
    return request


def _fork_twice() -> int:
    """Like ``os.fork``, for a process that belongs to the caller."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        pid = os.fork()
        if pid:
            os.write(writer, str(pid).encode())
            os._exit(0)
        while os.getppid() == between:
            time.sleep(0.001)
    else:
        os.waitpid(between, 0)
        pid = int(os.read(reader, 99))
    os.close(reader)
    os.close(writer)
    return pid


def _what_is_launched(request: Request) -> Request:
    """Run a launcher until it would exec Python."""
    with tempfile.TemporaryFile() as note:
        recorder = ROOT / 'tests' / 'tools' / 'recorder.sh'
        env = dict(PYTHON=str(recorder), RECORD_IN=str(note.fileno()))
        done = subprocess.run(
            request.arguments,
            env=request.env | env,
            cwd=request.cwd,
            pass_fds=[note.fileno()],
        )
        note.seek(0)
        words = os.fsdecode(note.read()).split('\0')[:-1]
    if not words:
        sys.exit(done.returncode)
    number = int(words[0])
    found = dict(word.split('=', 1) for word in words[1 + number :])
    del found['RECORD_IN']
    found['PYTHON'] = sys.executable
    return request._replace(arguments=words[1 : 1 + number], env=found)


def _own_server(env: dict[str, str]) -> Server | Request:
    """Fork a server for torchrun's ranks; returns a request in each rank."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        return _serve(theirs)
    theirs.close()
    return Server(ours, env)


def _start_ranks_from(server: Server) -> None:
    """Let the torchrun of this process do so."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import (
        SubprocessHandler,
    )

    def popen(handler: Any, args: Any, env: dict[str, str]) -> WarmPopen:
        return WarmPopen(
            server,
            args,
            env=env,
            stdout=handler._stdout,
            stderr=handler._stderr,
            start_new_session=True,
        )

    SubprocessHandler._popen = popen


def _prepare(request: Request, path: list[str]) -> None:
    """All that a process finds when it starts."""
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    tempfile.tempdir = None
    importlib.invalidate_caches()
    sys.modules['numpy'].random.seed()
    sys.path[:] = path


def _run(arguments: list[str]) -> None:
    if arguments[0] == '-u':
        sys.stdout.reconfigure(line_buffering=True)
        arguments = arguments[1:]
    kind, *rest = arguments
    if kind == '-m':
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name='__main__', alter_sys=True)
    elif kind == '-c':
        sys.argv = ['-c', *rest[1:]]
        sys.path.insert(0, '')
        main = sys.modules['__main__'] = types.ModuleType('__main__')
        exec(rest[0], main.__dict__)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
        runpy.run_path(kind, run_name='__main__')


def main() -> None:
    """Serve, and run in each process what it is for."""
    path = sys.path[1:]
    env = dict(os.environ)
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    _prepare(request, path)
    if request.arguments[0] in LAUNCHERS:
        request = _what_is_launched(request)
        _prepare(request, path)
    if any(word in AGENTS for word in request.arguments[:2]):
        found = _own_server(env)
        if isinstance(found, Request):
            request = found
            _prepare(request, path)
        else:
            _start_ranks_from(found)
    _run(request.arguments)


if __name__ == '__main__':
    main()
