# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""UpdateTrainLoop through the stock Runner, in one process.

The data set has 32 images: four updates of eight an epoch.
"""

import re
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch.utils.data import DataLoader

from mmdet_megdet.errors import ConfigError
from tests.data.tiny_run import log_of, train_tiny, update_config
from tests.data.tiny_task import TinyImages


@HOOKS.register_module(force=True)
class Witness(Hook):
    """Notes what a hook is called with."""

    def __init__(self) -> None:
        self.calls, self.losses, self.images, self.numbers = [], [], [], []

    def before_train(self, runner):
        runner.witness = self

    def note(self, runner, what, *more):
        self.calls.append((what, runner.epoch, runner.iter, *more))

    before_train_epoch = partialmethod(note, what='epoch')
    after_train_epoch = partialmethod(note, what='epoch done')
    after_val = partialmethod(note, what='validated')

    def before_train_iter(self, runner, batch_idx, data_batch):
        self.first = data_batch
        self.note(runner, 'update', batch_idx)

    def before_micro_step(self, runner, index, data_batch):
        self.note(runner, 'step', index)
        assert (data_batch is self.first) == (index == 0)
        self.images += data_batch['targets'].flatten().tolist()
        # The training process's own.
        self.numbers.append(torch.rand(()).item())

    def after_micro_step(self, runner, index, data_batch):
        self.note(runner, 'stepped', index)

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        assert data_batch is self.first
        assert not outputs['loss'].requires_grad
        self.losses.append(outputs['loss'].item())
        self.note(runner, 'updated', batch_idx)


def train(work_dir, images=4, total=8, **settings):
    cfg = update_config(work_dir, total, images, **settings)
    cfg.custom_hooks.append(dict(type='Witness'))
    return train_tiny(cfg)[0]


class UsersOwn(DataLoader):
    label = 'mine'


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
    """Two epochs, with a checkpoint after each update."""
    checkpoint = dict(type='AtomicCheckpointHook', by_epoch=False, interval=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.runner.runner.DataLoader', UsersOwn)
        return train(
            tmp_path_factory.mktemp('straight'),
            default_hooks__checkpoint=dict(checkpoint, _delete_=True),
        )


def test_an_iteration_is_an_update(straight):
    assert (straight.epoch, straight.iter, straight.max_iters) == (2, 8, 8)
    assert len(straight.train_dataloader) == 4
    assert straight.train_dataloader.label == 'mine'
    # Others of the class count batches as before.
    assert len(UsersOwn([1, 2, 3])) == 3
    calls = straight.witness.calls
    assert calls[:8] == [
        ('epoch', 0, 0),
        ('update', 0, 0, 0),
        ('step', 0, 0, 0),
        ('stepped', 0, 0, 0),
        ('step', 0, 0, 1),
        ('stepped', 0, 0, 1),
        ('updated', 0, 0, 0),
        ('update', 0, 1, 1),
    ]
    assert [call for call in calls if call[0].startswith('epoch')] == [
        ('epoch', 0, 0),
        ('epoch done', 0, 4),
        ('epoch', 1, 4),
        ('epoch done', 1, 8),
    ]
    log = log_of(Path(straight.work_dir))
    assert 'Epoch(train) [1][3/4]' in log
    assert 'epoch           4 updates' in log
    # The Runner's own count is one of updates.
    assert 'gradient of some iterations is lost' not in log


@pytest.mark.parametrize(('update', 'workers'), [(1, 2), (4, 0)])
def test_it_goes_on_after_any_update(tmp_path, straight, update, workers):
    """Here; on other hardware, see tests/distributed/test_updates.py."""
    resumed = train(
        tmp_path,
        train_dataloader__num_workers=workers,
        resume=True,
        load_from=straight.work_dir + f'/iter_{update}.pth',
    )
    assert (resumed.epoch, resumed.iter) == (2, 8)
    assert resumed.witness.losses == straight.witness.losses[update:]
    assert resumed.witness.numbers == straight.witness.numbers[2 * update :]
    states = (run.model.state_dict() for run in (resumed, straight))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_max_updates(tmp_path, straight):
    """A run by updates, and another that goes on with it inside an epoch."""
    loop = dict(_delete_=True, type='UpdateTrainLoop', val_interval=4)
    by_updates = dict(log_processor__by_epoch=False, param_scheduler=None)
    runner = train(
        tmp_path / 'first',
        train_cfg=loop | dict(max_updates=6, val_begin=2),
        **by_updates,
    )
    assert (runner.iter, runner.max_epochs) == (6, 2)
    calls = [c for c in runner.witness.calls if c[0] in ('epoch', 'validated')]
    assert calls == [
        ('epoch', 0, 0),
        ('validated', 0, 4),
        ('epoch', 1, 4),
        ('validated', 1, 6),
    ]
    assert runner.model.training
    assert 'Iter(train) [5/6]' in log_of(tmp_path / 'first')

    # Its checkpoint of the epoch's end, of which a part was made.
    resumed = train(
        tmp_path / 'then',
        train_cfg=loop | dict(max_updates=8),
        resume=True,
        load_from=str(tmp_path / 'first' / 'epoch_2.pth'),
        **by_updates,
    )
    assert (resumed.epoch, resumed.iter) == (2, 8)
    assert resumed.witness.images == straight.witness.images[6 * 8 :]


def test_data_time_is_that_of_all_micro_batches(tmp_path, monkeypatch):
    """By a clock that goes on when an image is loaded, and then alone."""
    loop = 'mmdet_megdet.updates.loop'
    clock = [0.0]
    load = TinyImages.__getitem__

    def loading(self, index):
        clock[0] += 1
        return load(self, index)

    monkeypatch.setattr(TinyImages, '__getitem__', loading)
    stand_in = SimpleNamespace(time=lambda: clock[0])
    for module in ('mmengine.hooks.iter_timer_hook', loop):
        monkeypatch.setattr(f'{module}.time', stand_in)
    runner = train(tmp_path, images=2, train_cfg__max_epochs=1)
    data, _ = runner.message_hub.get_scalar('train/data_time').data
    assert data.tolist() == [8] * 4


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(default_hooks__total_batch=None), 'Set default_hooks.total_b'),
        (dict(train_dataloader__batch_sampler=None), 'dataloader has Batch'),
        (dict(train_cfg__max_updates=3), 'max_epochs=2 and max_updates=3'),
        (dict(train_cfg__max_epochs=0), 'a number from 1'),
        (dict(randomness__diff_rank_seed=True), 'diff_rank_seed=True'),
        (dict(total=64), 'has 32 image(s) to train on (after filtering)'),
    ],
)
def test_refusals(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(tmp_path, **settings)
