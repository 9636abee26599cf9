# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Two machines, each a torchrun agent with one rank, that come and go.

What happens when is told by the training itself, which waits at some updates
(``tests/data/elastic_config.py``).
"""

import re
import signal

import pytest
import torch

import mmdet_megdet  # noqa: F401  (checkpoints load safely)
from tests.distributed.faults import Job, send
from tests.tools import command
from tests.tools.command import PATIENCE, ROOT

pytestmark = pytest.mark.slow

CONFIG = ROOT / 'tests' / 'data' / 'elastic_config.py'


class Machines(Job):
    """Agents of one job on this machine."""

    def __init__(self, work_dir):
        super().__init__(work_dir)
        self.port = command.free_port()

    def join(self, name, *settings):
        """Add a machine; the first one holds the rendezvous."""
        agent = self.start(
            name,
            *('dist_train.sh', CONFIG, '1', '--resume'),
            *('--work-dir', self.work_dir, '--max-images-per-gpu', '8'),
            *('--cfg-options', 'log_level=INFO', *settings),
            **dict(NNODES='1:2', MASTER_ADDR='127.0.0.1', PORT=self.port),
            PET_RDZV_CONF='last_call_timeout=5',
        )
        command.wait_for_port(self.port, PATIENCE)
        return agent

    def wait_for_updates(self, number):
        self.wait_for('updates_done', f'{number}\n')

    def release(self, update):
        """Let the training go on that waits ahead of an update."""
        (self.work_dir / f'go_{update}').touch()

    def end(self):
        """Statuses of those that have not been killed; the first one's log."""
        ended = [s for s in self.finish().statuses if s != -signal.SIGKILL]
        return ended, (self.work_dir / 'first.out').read_text()


@pytest.fixture
def job(tmp_path):
    machines = Machines(tmp_path)
    yield machines
    send(machines.descendants(), signal.SIGKILL)


def state(work_dir):
    return torch.load(work_dir / 'iter_30.pth')['state_dict']


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    """The end of one rank to whom nothing happens."""
    work_dir = tmp_path_factory.mktemp('undisturbed')
    alone = Job(work_dir)
    options = ('--images-per-gpu', '8', '--work-dir', work_dir)
    wait = ('--cfg-options', 'default_hooks.wait=None')
    alone.start('alone', 'train.py', CONFIG, *options, *wait)
    assert alone.finish().statuses == [0], alone.logs()
    return state(work_dir)


def gone_on(ranks, update, before):
    return (
        f'RestartHook: training goes on with {ranks} rank(s) after update '
        f'{update}. It had come to update {before}: {before - update} '
        'update(s) are lost and made again.'
    )


def test_a_machine_is_killed_and_comes_back(job, tmp_path, expected):
    """With its rank, after update 13; the latest checkpoint is of 10."""
    job.join('first')
    second = job.join('second')
    job.wait_for_updates(13)
    command.kill_tree(second.pid)
    job.release(13)
    job.wait_for_updates(20)
    job.join('again')
    statuses, log = job.end()
    assert statuses == [0, 0], log

    assert gone_on(1, 10, before=13) in log
    # A machine that joins costs nothing: all stop with a checkpoint.
    assert gone_on(2, 21, before=21) in log
    for ranks in ('2 of 2 ranks x 4', '1 of 1 ranks x 8'):
        assert f'statistics over 8 images: {ranks} images per GPU' in log
    torch.testing.assert_close(state(tmp_path), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ('number', 'ends'),
    [
        (signal.SIGKILL, [0]),
        pytest.param(signal.SIGTERM, [0, 1], marks=pytest.mark.nightly),
    ],
)
def test_an_agent_takes_its_ranks_along(job, tmp_path, expected, number, ends):
    """They stop with a checkpoint, from which the others go on."""
    job.release(20)
    job.join('first')
    second = job.join('second')
    job.wait_for_updates(13)
    ranks = command.descendants(second.pid)
    (rank,) = [p for p in ranks if p.ppid() == second.pid]
    second.send_signal(number)
    job.release(13)
    rank.wait(PATIENCE)
    statuses, log = job.end()
    assert statuses == ends, log
    assert 'rank 1 got SIGTERM. All ranks stop after' in log
    # After 13 or later, as the signal comes; nothing is lost.
    (update,) = re.findall(r'with 1 rank\(s\) after update (\d+)', log)
    assert int(update) >= 13
    assert gone_on(1, int(update), before=int(update)) in log
    torch.testing.assert_close(state(tmp_path), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ('setting', 'message'),
    [
        ('optim_wrapper.optimizer.lr=1e300', 'No weight has seen it'),
        ('train_cfg.max_epochs=2', 'error: UpdateTrainLoop takes one of'),
    ],
)
def test_what_would_fail_again_ends_the_job(job, setting, message):
    """On all machines, without a restart."""
    job.release(13)
    job.join('first', setting)
    job.join('second', setting)
    statuses, logs = job.finish()
    assert statuses == [1, 1], logs
    assert message in ''.join(logs)
    for log in logs:
        assert log.count('starts with 1') <= 1
        assert log.count('starts with 2') <= 1
