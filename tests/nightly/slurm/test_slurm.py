# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The launchers on a real Slurm: two ranks on the CPUs of one machine."""

import os
import shutil
import socket
import time
from pathlib import Path

import pytest

from mmdet_megdet.faults import latest_checkpoint
from tests.distributed.faults import CONFIG, Job
from tests.tools.checks.findings import shown
from tests.tools.command import PATIENCE, TOOLS, free_port, run

PATH = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])

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


def client(variables: dict[str, str], *command: str) -> str:
    """Run one of Slurm's clients; return what it prints."""
    return run(*command, **variables).stdout.strip()


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
    """The environment of a job of two tasks, without GPUs.

    The cluster is apart from any other of the machine.
    """
    programs = [shutil.which(x, path=PATH) for x in ('slurmctld', 'slurmd')]
    if os.geteuid() != 0 or not all(programs):
        pytest.skip('needs root, and what apt-get install slurm-wlm brings')
    folder = tmp_path_factory.mktemp('slurm')
    for name in ('state', 'spool'):
        (folder / name).mkdir()
    ports, host = (free_port(), free_port()), socket.gethostname()
    conf = folder / 'slurm.conf'
    conf.write_text(CONF.format(folder=folder, host=host, ports=ports))
    variables = dict(SLURM_CONF=str(conf), PATH=PATH)
    daemons = Job(folder)
    daemons.start('slurmctld', programs[0], '-D', **variables)
    daemons.start('slurmd', programs[1], '-D', '-N', 'localhost', **variables)

    def wait(seconds, text, *command):
        end = time.monotonic() + seconds
        while client(variables, *command, '--noheader') != text:
            assert time.monotonic() < end, daemons.logs()
            time.sleep(0.1)

    try:
        wait(PATIENCE, 'idle', 'sinfo', '--format=%T')
        job = dict(GPUS='2', GPUS_PER_NODE='2', CPUS_PER_TASK='1')
        yield variables | job | dict(SRUN_ARGS='--gres=none')
        # So that no step outlives its daemons.
        client(variables, 'scancel', '--signal=KILL', '--user=root')
        wait(60, '', 'squeue')
    finally:
        for daemon in daemons.processes:
            daemon.kill()
            daemon.wait()


def finish(cluster, script: str, *words: str | Path) -> str:
    """Run a launcher to its end; return what was printed."""
    words = (TOOLS / script, 'cpus', 'a-job', *words)
    result = run(*words, MASTER_PORT=free_port(), **cluster)
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_preempted_and_resubmitted(cluster, tmp_path):
    """SIGTERM to all processes of the step; then --resume."""
    places = ('--cfg-options', 'default_hooks.wait.places=[(4, 2)]')
    job = Job(tmp_path)
    words = ('slurm_train.sh', 'cpus', 'a-job', CONFIG, tmp_path, *places)
    job.start('srun', *words, MASTER_PORT=free_port(), **cluster)
    for rank in range(2):
        job.wait_for(f'waiting_{rank}')
    queued = ('squeue', '--noheader', '--name=a-job', '--format=%i')
    number = client(cluster, *queued)
    client(cluster, 'scancel', '--signal=TERM', number)
    (status,), (log,) = job.finish()
    assert status == 75, log
    assert 'All ranks stop after iteration 5 ' in log
    assert 'tasks 0-1: Exited with exit code 75' in log
    assert 'DataLoader worker' not in log
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_5.pth')

    log = finish(cluster, 'slurm_train.sh', CONFIG, tmp_path, '--resume')
    assert 'resumed epoch: 1, iter: 5' in log
    assert 'Epoch(train) [3][4/4]' in log


def test_doctor(cluster):
    """Both tasks are found, and what they compute is right."""
    good = shown(finish(cluster, 'slurm_doctor.sh'), 'PASS')
    assert good['ranks'][0].endswith('ranks 0, 1')
    assert good['all-reduce'] == good['MegDetSyncBN']
