# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A Slurm cluster of this one machine, with two CPUs, for root."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.tools.command import PATIENCE, environment, free_port, run, start

_PATH = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])

# As small as it gets: nothing of munge, systemd, cgroups or a database. The
# machine's own cores do not matter (config_overrides).
CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
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
    if not all(map(_path, ('slurmctld', 'slurmd', 'srun'))):
        return 'apt-get install slurm-wlm'
    return ''


def _path(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


@contextmanager
def running_cluster() -> Iterator[dict[str, str]]:
    """A cluster apart from any other of the machine, with a partition 'cpus'.

    Yields what its clients need in their environment.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for name in ('state', 'spool'):
            (folder / name).mkdir()
        ports = free_port(), free_port()
        host = socket.gethostname()
        conf = folder / 'slurm.conf'
        conf.write_text(CONF.format(folder=folder, host=host, ports=ports))
        variables = dict(SLURM_CONF=str(conf), PATH=_PATH)
        for command in ('slurmctld -D', 'slurmd -D -N localhost'):
            name, *options = command.split()
            output = stack.enter_context((folder / f'{name}.out').open('w'))
            daemon = start(
                *(_path(name), *options),
                env=environment(**variables),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.enter_context(daemon)
            stack.callback(daemon.kill)
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
    return run(*command, **variables).stdout


def _wait(
    condition: Callable[[], bool], folder: Path, seconds: float = PATIENCE
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        said = [path.read_text() for path in sorted(folder.glob('*.out'))]
        assert time.monotonic() < end, '\n'.join(said)
        time.sleep(0.1)
