# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Processes that begin with torch and mmdet imported, which takes 10 s of CPU.

A server imports them once and forks a process for each command: twice, and
the first of the two ends. The second one then belongs to the nearest 'child
subreaper' above (``man 2 prctl``), which the caller is for that moment: it is
the caller's child like any other. Ranks of torchrun come from a copy of the
server and are torchrun's children.
"""

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
from pathlib import Path
from typing import Any

TORCHRUN = ('torch.distributed.run', 'elastic.py')
SERVER_NAME = 'warm-server'
MODULES = (
    *('torch._dynamo', 'torch.distributed.launcher.api'),
    *('torch.distributed.elastic.multiprocessing', 'mmcv.ops'),
    *('mmengine.runner', 'mmdet.apis', 'mmdet.datasets', 'mmdet.engine'),
    *('mmdet.evaluation', 'mmdet.models', 'mmdet.utils'),
    *('mmdet.visualization', 'mmdet_megdet.cli', 'mmdet_megdet.hooks'),
)
PR_SET_CHILD_SUBREAPER = 36


class WarmPopen(subprocess.Popen):
    """A ``Popen`` whose Python comes from the server behind a channel."""

    def __init__(self, channel: socket.socket, args: Any, **kwargs: Any):
        self._channel = channel
        super().__init__(args, **kwargs)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        # In this order since Python 3.7.
        cwd, env, pipes, new_session = rest[4], rest[5], rest[9:15], rest[20]
        # The child's ends: of stdin what it reads from, of the others what it
        # writes to.
        ends = enumerate((pipes[0], pipes[3], pipes[5]))
        files = [number if end == -1 else end for number, end in ends]
        request = args[1:], os.path.abspath(cwd or '.'), env, new_session
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            data = json.dumps(request).encode()
            socket.send_fds(self._channel, [data], files)
            self.pid = int(self._channel.recv(99))
            self._child_created = True
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
            self._close_pipe_fds(*pipes)


def _serve(channel: socket.socket) -> list[str]:
    """Fork processes until the caller is gone; returns in each of them.

    That is as it finds itself when it starts; its arguments are returned.
    """
    process_name = Path('/proc/self/comm')
    process_name.write_text(SERVER_NAME)
    # Others do not come along into a fork.
    assert len(os.listdir('/proc/self/task')) == 1
    while True:
        data, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            break
        os.wait()
        for descriptor in files:
            os.close(descriptor)
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    channel.send(str(os.getpid()).encode())
    channel.close()
    process_name.write_text('python')
    arguments, cwd, env, new_session = json.loads(data)
    if new_session:
        os.setsid()
    for target, source in enumerate(files):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    tempfile.tempdir = None
    sys.modules['numpy'].random.seed()
    return arguments


def _serve_ranks() -> list[str] | None:
    """Fork a server for the ranks of this torchrun; returns in each too."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import (
        SubprocessHandler,
    )

    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        return _serve(theirs)
    theirs.close()

    def popen(handler: Any, args: Any, env: dict[str, str]) -> WarmPopen:
        files = dict(stdout=handler._stdout, stderr=handler._stderr)
        return WarmPopen(ours, args, env=env, start_new_session=True, **files)

    SubprocessHandler._popen = popen
    return None


def main() -> None:
    """Serve, and run in each process what it is for."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]
    for name in MODULES:
        importlib.import_module(name)
    # A process leaves alone what it has not made.
    gc.collect()
    gc.freeze()
    arguments = _serve(channel)
    if any(word.endswith(TORCHRUN) for word in arguments[:2]):
        arguments = _serve_ranks() or arguments
    if arguments[0] == '-u':
        sys.stdout.reconfigure(line_buffering=True)
        del arguments[0]
    if arguments[0] == '-m':
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
        runpy.run_path(arguments[0], run_name='__main__')


if __name__ == '__main__':
    main()
