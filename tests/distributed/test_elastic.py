# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Two machines, each a torchrun agent with one rank, that come and go.

What happens when is told by the training itself, which waits at some updates
(``tests/data/elastic_task.py``).
"""

from __future__ import annotations

import re
import signal
import subprocess
import time

import pytest
import torch

import mmdet_megdet  # noqa: F401  (checkpoints load safely)
from tests.tools.command import (
    PATIENCE,
    ROOT,
    TOOLS,
    descendants,
    environment,
    free_port,
    kill_tree,
    run,
    start,
    wait_for_port,
)

CONFIG = ROOT / 'tests' / 'data' / 'elastic_config.py'


class Machines:
    """Agents of one job on this machine.

    Args:
        work_dir (Path): Of the training.
        *settings (str): Overrides of the config.
    """

    def __init__(self, work_dir, *settings):
        self.work_dir = work_dir
        self.port = free_port()
        self.command = [TOOLS / 'dist_train.sh', CONFIG, '1', '--resume']
        self.command += ['--work-dir', work_dir, '--max-images-per-gpu', '8']
        if settings:
            self.command += ['--cfg-options', *settings]
        self.agents = []

    def start(self, name):
        """A machine; the first one holds the rendezvous."""
        log = self.work_dir / f'{name}.out'
        with log.open('w') as output:
            agent = start(
                *self.command,
                env=environment(
                    NNODES='1:2',
                    MASTER_ADDR='127.0.0.1',
                    PORT=self.port,
                    PET_RDZV_CONF='last_call_timeout=5',
                ),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.agents.append(agent)
        wait_for_port(self.port, PATIENCE)
        return agent

    def wait_for_updates(self, number):
        """Until so many are done."""
        note, end = self.work_dir / 'updates_done', time.monotonic() + PATIENCE
        while not (note.exists() and note.read_text() == f'{number}\n'):
            assert time.monotonic() < end, self.logs()
            assert self.agents[0].poll() is None, self.logs()
            time.sleep(0.05)

    def release(self, update):
        """Let the training go on that waits ahead of an update."""
        (self.work_dir / f'go_{update}').touch()

    def finish(self):
        """Statuses of those that have not been killed."""
        return [
            status
            for agent in self.agents
            if (status := agent.wait(PATIENCE)) != -signal.SIGKILL
        ]

    def log(self, name):
        return (self.work_dir / f'{name}.out').read_text()

    def logs(self):
        return [path.read_text() for path in self.work_dir.glob('*.out')]


def kill(agent):
    """Ends an agent and its rank."""
    kill_tree(agent.pid)
    agent.wait()


@pytest.fixture
def machines(tmp_path):
    started = []

    def make(*settings):
        started.append(Machines(tmp_path, *settings))
        return started[-1]

    yield make
    for agent in started[0].agents:
        if agent.poll() is None:
            kill(agent)


def state(work_dir):
    return torch.load(work_dir / 'iter_30.pth')['state_dict']


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
    """Weights and running statistics of one rank to whom nothing happens."""
    work_dir = tmp_path_factory.mktemp('undisturbed')
    result = run(
        TOOLS / 'train.py',
        CONFIG,
        '--work-dir',
        work_dir,
        '--images-per-gpu',
        '8',
        '--cfg-options',
        'default_hooks.wait=None',
    )
    assert result.returncode == 0, result.stdout
    return state(work_dir)


def assert_same_end(work_dir, undisturbed):
    ours = state(work_dir)
    assert ours.keys() == undisturbed.keys()
    for name, value in undisturbed.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-8)


def gone_on(ranks, update, before):
    return (
        f'RestartHook: training goes on with {ranks} rank(s) after update '
        f'{update}. It had come to update {before}: {before - update} '
        'update(s) are lost and made again.'
    )


@pytest.mark.slow
def test_a_machine_is_killed_and_comes_back(machines, tmp_path, undisturbed):
    """With its rank, after update 13; the latest checkpoint is of 10."""
    job = machines()
    job.start('first')
    second = job.start('second')
    job.wait_for_updates(13)
    kill(second)
    job.release(13)
    job.wait_for_updates(20)
    job.start('again')
    assert job.finish() == [0, 0], job.logs()

    log = job.log('first')
    assert gone_on(1, 10, before=13) in log
    # A machine that joins costs nothing: all stop with a checkpoint.
    assert gone_on(2, 21, before=21) in log
    for ranks in ('2 of 2 ranks x 4', '1 of 1 ranks x 8'):
        assert f'statistics over 8 images: {ranks} images per GPU' in log
    assert_same_end(tmp_path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('number', 'statuses'),
    [
        (signal.SIGTERM, [0, 1]),
        pytest.param(signal.SIGKILL, [0], marks=pytest.mark.nightly),
    ],
)
def test_an_agent_takes_its_ranks_along(
    machines, tmp_path, undisturbed, number, statuses
):
    """They stop with a checkpoint, from which the others go on."""
    job = machines()
    job.release(20)
    job.start('first')
    second = job.start('second')
    job.wait_for_updates(13)
    (rank,) = [p for p in descendants(second.pid) if p.ppid() == second.pid]
    second.send_signal(number)
    job.release(13)
    rank.wait(PATIENCE)
    assert job.finish() == statuses, job.logs()
    log = job.log('first')
    assert 'rank 1 got SIGTERM. All ranks stop after' in log
    # After 13 or later, as the signal comes; nothing is lost.
    (update,) = re.findall(r'with 1 rank\(s\) after update (\d+)', log)
    assert int(update) >= 13
    assert gone_on(1, int(update), before=int(update)) in log
    assert_same_end(tmp_path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('setting', 'message'),
    [
        ('model.fail_on=1', 'RuntimeError: failing as the test asked for'),
        ('optim_wrapper.optimizer.lr=1e300', 'No weight has seen it'),
        ('train_cfg.max_epochs=2', 'error: UpdateTrainLoop takes one of'),
    ],
)
def test_what_would_fail_again_ends_the_job(machines, setting, message):
    """On all machines, without a restart."""
    job = machines(setting)
    job.release(13)
    job.start('first')
    job.start('second')
    assert job.finish() == [1, 1], job.logs()
    logs = job.logs()
    assert any(message in log for log in logs)
    for ranks in (1, 2):
        assert all(log.count(f'starts with {ranks}') <= 1 for log in logs)
