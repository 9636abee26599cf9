# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A Slurm cluster of this one machine, with two CPUs, for root."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.tools.command import PATIENCE, free_port

_PATH = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])

# As small as it gets: nothing of systemd, cgroups or a database. The machine's
# own cores do not matter (config_overrides).
CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=cpus Nodes=localhost Default=YES State=UP
"""


def missing() -> str:
    """What a cluster lacks here; empty if nothing."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root here"
    programs = ('munged', 'slurmctld', 'slurmd', 'srun')
    lacking = [name for name in programs if not _path(name)]
    advice = 'missing: apt-get install slurm-wlm munge'
    return f'{", ".join(lacking)} {advice}' if lacking else ''


def _path(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


@contextmanager
def running_cluster() -> Iterator[dict[str, str]]:
    """A cluster apart from any other of the machine, with a partition 'cpus'.

    Yields what its clients need in their environment.
    """
    with ExitStack() as stack:
        # Of a short name, since it holds a socket, and open to munge.
        folder = Path(tempfile.mkdtemp(prefix='slurm-'))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        for name in ('state', 'spool'):
            (folder / name).mkdir()
        ports = free_port(), free_port()
        host = socket.gethostname()
        conf = folder / 'slurm.conf'
        conf.write_text(CONF.format(folder=folder, host=host, ports=ports))
        variables = dict(SLURM_CONF=str(conf), PATH=_PATH)
        _start_munge(stack, folder / 'munge')
        _start(stack, ['slurmctld', '-D'], folder, variables)
        _start(stack, ['slurmd', '-D', '-N', 'localhost'], folder, variables)
        states = ('sinfo', '--noheader', '--format=%T')
        _wait(lambda: client(variables, *states).strip() == 'idle', folder)

        def end_jobs() -> None:
            """So that no step outlives its daemons."""
            client(variables, 'scancel', '--signal=KILL', '--user=root')
            jobs = ('squeue', '--noheader')
            with suppress(AssertionError):
                _wait(lambda: not client(variables, *jobs).strip(), folder, 10)

        stack.callback(end_jobs)
        yield variables


def client(variables: dict[str, str], *command: str) -> str:
    """Run one of Slurm's clients; return what it prints."""
    return subprocess.run(
        command,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    ).stdout


def _start_munge(stack: ExitStack, folder: Path) -> None:
    """munged, as its own user, who owns its folder and key."""
    folder.mkdir(mode=0o711)
    key = folder / 'key'
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for path in (folder, key):
        shutil.chown(path, 'munge', 'munge')
    command = ['munged', '--foreground', '--force', f'--key-file={key}']
    command += [f'--socket={folder}/socket']
    command += [f'--{n}-file={folder}/{n}' for n in ('pid', 'log', 'seed')]
    who = dict(user='munge', group='munge', extra_groups=[])
    _start(stack, command, folder.parent, {}, **who)
    _wait((folder / 'socket').exists, folder.parent)


def _start(
    stack: ExitStack,
    command: list[str],
    folder: Path,
    variables: dict[str, str],
    **who: object,
) -> None:
    with (folder / f'{command[0]}.out').open('w') as output:
        daemon = subprocess.Popen(
            [_path(command[0]), *command[1:]],
            env=os.environ | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **who,
        )

    def end() -> None:
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    stack.callback(end)


def _wait(
    condition: Callable[[], bool], folder: Path, seconds: float = PATIENCE
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, '\n'.join(
            f'{path.name}: {path.read_text()}'
            for path in sorted(folder.glob('*.out'))
        )
        time.sleep(0.1)
