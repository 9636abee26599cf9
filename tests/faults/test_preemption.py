# Copyright (c) mmdet_megdet contributors. All rights reserved.
import gc
import os
import signal
import subprocess
from types import SimpleNamespace

import psutil
import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch.utils.data import DataLoader

from mmdet_megdet.errors import ConfigError, Preempted
from mmdet_megdet.faults.preemption import PreemptionHook, shield_workers
from tests.data.faults_run import train
from tests.data.tiny_run import by_iteration


@HOOKS.register_module(force=True)
class TerminateAll(Hook):
    """Sends SIGTERM to the workers and their process, as Slurm does."""

    def before_run(self, runner):
        # Those of earlier tests are no workers of this run.
        self.others = set(psutil.Process().children())

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 2:
            workers = set(psutil.Process().children()) - self.others
            assert len(workers) == 2
            # Their training process's own would end them.
            pids = [str(worker.pid) for worker in workers]
            subprocess.run(['kill', *pids], check=True)
            assert psutil.wait_procs(workers, timeout=1)[0] == []
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_under_an_iteration_based_loop(tmp_path):
    """Which starts its workers ahead of all hooks."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Preempted) as stop:
            train(
                tmp_path,
                train_dataloader__num_workers=2,
                default_hooks__checkpoint__by_epoch=False,
                default_hooks__total_batch__total_batch_size=4,
                custom_hooks=[dict(type='TerminateAll')],
                **by_iteration(30),
            )
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert stop.value.code == 75
    assert (tmp_path / 'iter_3.pth').exists()


def test_a_run_to_its_end_leaves_sigterm_as_it_was(tmp_path):
    """And one without checkpoints all along."""
    before = signal.getsignal(signal.SIGTERM)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    train(tmp_path, train_cfg__max_epochs=1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(wakeup) == wakeup
    train(tmp_path / 'none', default_hooks__checkpoint=None)
    assert not list((tmp_path / 'none').glob('*.pth'))
    # Whose wrapper may be of a kind that does not tell of updates.
    PreemptionHook().after_train_iter(SimpleNamespace(optim_wrapper=None))


@pytest.mark.parametrize(('settings', 'text'), [
    (dict(default_hooks__checkpoint__type='CheckpointHook'),
     r"checkpoint\.type='AtomicCheckpointHook'"),
    (dict(train_cfg=dict(_delete_=True, by_epoch=True, max_epochs=1),
          train_dataloader__batch_sampler=None),
     'EpochBasedTrainLoop cannot go on there'),
])  # fmt: skip
def test_what_could_not_go_on_is_refused(tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        train(tmp_path, **settings)


class FrozenObjects(list):
    """Objects that the collector leaves alone in the process that asks."""

    def __getitem__(self, index):
        return gc.get_freeze_count()


def test_a_worker_ends_nothing_of_its_training_process():
    """Such as a process group, whose threads a forked one has not."""
    loader = DataLoader(
        FrozenObjects([0]), num_workers=1, multiprocessing_context='spawn'
    )
    shield_workers(loader)
    assert next(iter(loader)).item() > 0
