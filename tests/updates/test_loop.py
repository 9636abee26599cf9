# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""UpdateTrainLoop through the stock Runner, in one process.

The data set has 32 images: four updates of eight an epoch.
"""

from __future__ import annotations

from types import SimpleNamespace

import mmengine.hooks.iter_timer_hook
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.utils.data import DataLoader

import mmdet_megdet.updates.loop
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import log_of, train_tiny, update_config
from tests.data.tiny_task import TinyImages

BY_UPDATE = dict(
    default_hooks__checkpoint=dict(
        _delete_=True, type='AtomicCheckpointHook', by_epoch=False, interval=1
    )
)


@HOOKS.register_module(force=True)
class Witness(Hook):
    """Notes what a hook is called with; waits, or raises, if it is told so."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls, self.losses, self.images, self.errors = [], [], [], []
        self.fail_at = fail_at

    def _note(self, runner, what, *more):
        self.calls.append((what, runner.epoch, runner.iter, *more))

    def before_train_epoch(self, runner):
        self._note(runner, 'epoch')

    def before_train_iter(self, runner, batch_idx, data_batch):
        self.first = data_batch
        self._note(runner, 'update', batch_idx)

    def before_micro_step(self, runner, index, data_batch):
        if runner.iter == self.fail_at:
            raise LookupError('no such batch')
        self._note(runner, 'step', index)
        assert (data_batch is self.first) == (index == 0)
        self.images += data_batch['targets'].flatten().tolist()
        # Random numbers of the training process.
        self.images.append(torch.rand(()).item())

    def after_micro_step(self, runner, index, data_batch):
        self._note(runner, 'stepped', index)

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        assert data_batch is self.first
        assert not outputs['loss'].requires_grad
        self.losses.append(outputs['loss'].item())
        self._note(runner, 'updated', batch_idx)

    def after_train_epoch(self, runner):
        self._note(runner, 'epoch done')

    def after_val(self, runner):
        self._note(runner, 'validated')

    def on_error(self, runner, error):
        self.errors.append((runner.iter, error))


def train(work_dir, total=8, images=4, fail_at=None, **settings):
    cfg = update_config(work_dir, total, images, **settings)
    cfg.custom_hooks.append(dict(type='Witness', fail_at=fail_at))
    runner = Runner.from_cfg(adapt_config(cfg))
    (witness,) = [h for h in runner.hooks if isinstance(h, Witness)]
    runner.witness = witness
    runner.train()
    return runner


def refusal(work_dir, **settings):
    with pytest.raises(ConfigError) as error:
        train(work_dir, **settings)
    return str(error.value)


def test_an_iteration_is_an_update(tmp_path):
    runner = train(tmp_path)
    assert (runner.epoch, runner.iter, runner.max_iters) == (2, 8, 8)
    assert len(runner.train_dataloader) == 4
    steps = [
        (what, 0, 0, index) for index in (0, 1) for what in ('step', 'stepped')
    ]
    assert runner.witness.calls[:8] == [
        ('epoch', 0, 0),
        ('update', 0, 0, 0),
        *steps,
        ('updated', 0, 0, 0),
        ('update', 0, 1, 1),
    ]
    assert [c for c in runner.witness.calls if c[0][:5] == 'epoch'] == [
        ('epoch', 0, 0),
        ('epoch done', 0, 4),
        ('epoch', 1, 4),
        ('epoch done', 1, 8),
    ]
    log = log_of(tmp_path)
    assert 'Epoch(train) [1][3/4]' in log
    assert 'accumulation    2 micro-steps' in log
    assert 'epoch           4 updates' in log
    assert 'warm-up         10 updates' in log
    # The Runner's own count is one of updates.
    assert 'gradient of some iterations is lost' not in log


class LabelledLoader(DataLoader):
    """A user's own, with more than the stock one has."""

    label = 'mine'


def test_a_loader_of_the_users_own_class_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr('mmengine.runner.runner.DataLoader', LabelledLoader)
    loader = train(tmp_path, train_cfg__max_epochs=1).train_dataloader
    assert isinstance(loader, LabelledLoader)
    assert (loader.label, len(loader)) == ('mine', 4)
    # Others of the class count batches as before.
    assert len(LabelledLoader([1, 2, 3])) == 3


def test_an_update_is_one_of_the_whole_batch(tmp_path):
    """Micro-steps of a model without norm layers add up to one."""
    plain = dict(model__norm_cfg=dict(type='torch.nn.Identity'))
    ends = []
    for images in (8, 2):
        runner = train(tmp_path / str(images), images=images, **plain)
        ends.append(runner.model.state_dict())
        losses = runner.witness.losses
        if images == 8:
            expected = losses
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value)


@pytest.mark.parametrize(('update', 'workers'), [(1, 2), (4, 0), (6, 0)])
def test_it_goes_on_after_any_update(tmp_path, straight, update, workers):
    """In micro-batches of another size, the weights apart."""
    checkpoint = straight.work_dir + f'/iter_{update}.pth'
    resumed = dict(resume=True, load_from=checkpoint)
    same = train(
        tmp_path / 'same', train_dataloader__num_workers=workers, **resumed
    )
    assert (same.epoch, same.iter) == (2, 8)
    assert same.witness.losses == straight.witness.losses[update:]
    for name, value in same.model.state_dict().items():
        assert torch.equal(straight.model.state_dict()[name], value), name
    other = train(tmp_path / 'other', images=2, **resumed)
    assert other.iter == 8
    for name in ('lr', 'momentum'):
        before, after = (
            runner.optim_wrapper.param_groups[0][name]
            for runner in (straight, other)
        )
        assert before == after
    # The images, augmented, without the training process's own numbers.
    expected = sorted(_without(straight.witness.images, 4)[update * 8 :])
    assert sorted(_without(other.witness.images, 2)) == expected


def _without(numbers, images):
    return [n for i, n in enumerate(numbers) if i % (images + 1) < images]


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
    """Two epochs, with a checkpoint after each update."""
    return train(tmp_path_factory.mktemp('straight'), **BY_UPDATE)


def test_max_updates(tmp_path):
    runner = train(
        tmp_path,
        train_cfg=dict(
            _delete_=True,
            type='UpdateTrainLoop',
            max_updates=6,
            val_interval=4,
            val_begin=2,
        ),
        log_processor=dict(by_epoch=False),
        default_hooks__checkpoint__by_epoch=False,
        default_hooks__checkpoint__save_best=None,
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
    assert 'Iter(train) [5/6]' in log_of(tmp_path)


def test_it_goes_on_where_max_updates_ended_an_epoch(tmp_path, straight):
    """By its checkpoint of the epoch's end, of which a part was made."""
    settings = dict(train_cfg__max_epochs=None, param_scheduler=None)
    train(tmp_path / 'first', train_cfg__max_updates=6, **settings)
    resumed = train(
        tmp_path / 'then',
        train_cfg__max_updates=8,
        resume=True,
        load_from=str(tmp_path / 'first' / 'epoch_2.pth'),
        **settings,
    )
    assert (resumed.epoch, resumed.iter) == (2, 8)
    images = _without(straight.witness.images, 4)[6 * 8 :]
    assert _without(resumed.witness.images, 4) == images


def test_it_stops_early(tmp_path):
    stop = dict(
        type='EarlyStoppingHook', monitor='error', stopping_threshold=0.0
    )
    runner = train(
        tmp_path,
        default_hooks__stop=dict(stop, rule='greater'),
        train_cfg=dict(
            _delete_=True,
            type='UpdateTrainLoop',
            max_updates=8,
            val_interval=2,
        ),
    )
    assert runner.iter == 2
    assert runner.witness.calls[-2:] == [
        ('validated', 0, 2),
        ('epoch done', 0, 2),
    ]


def test_data_time_is_that_of_all_micro_batches(tmp_path, monkeypatch):
    """By a clock that goes on when an image is loaded, and then alone."""
    clock = [0.0]
    load = TinyImages.__getitem__

    def loading(self, index):
        clock[0] += 1
        return load(self, index)

    monkeypatch.setattr(TinyImages, '__getitem__', loading)
    for module in (mmengine.hooks.iter_timer_hook, mmdet_megdet.updates.loop):
        monkeypatch.setattr(
            module, 'time', SimpleNamespace(time=lambda: clock[0])
        )
    runner = train(tmp_path, images=2, train_cfg__max_epochs=1)
    data, _ = runner.message_hub.get_scalar('train/data_time').data
    assert data.tolist() == [8] * 4


def test_hooks_are_told_of_an_error(tmp_path, capsys):
    cfg = dict(default_hooks__rank_watch=dict(type='RankWatchHook'))
    with pytest.raises(LookupError, match='no such batch'):
        train(tmp_path, fail_at=5, **cfg)
    said = capsys.readouterr()
    line = 'rank 0 of 1 fails in epoch 2, update 2 of 4, micro-step 1 of 2'
    assert f'{line} (forward): LookupError' in said.out + said.err


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (
            dict(default_hooks__total_batch=None),
            'which the config does not say. Set default_hooks.total_batch',
        ),
        (
            dict(train_dataloader__batch_sampler=None),
            'from UpdateBatchSampler, but the train dataloader has Batch',
        ),
        (
            dict(train_cfg__max_updates=3),
            'max_epochs=2 and max_updates=3',
        ),
        (dict(train_cfg__max_epochs=None), 'one of max_epochs and'),
        (dict(train_cfg__max_epochs=0), 'a number from 1'),
        (
            dict(randomness__diff_rank_seed=True),
            'randomness.diff_rank_seed=True',
        ),
        (dict(total=6), '4 at once do not divide a total batch of 6'),
        (dict(total=64), 'fewer than an update of 64'),
        (
            dict(optim_wrapper__accumulative_counts=3),
            'accumulative_counts=3 contradicts TotalBatchHook, which needs 2',
        ),
    ],
)
def test_refusals(tmp_path, settings, message):
    assert message in refusal(tmp_path, **settings)


def test_what_cannot_go_on_inside_an_epoch(tmp_path, straight):
    inside = dict(
        resume=True, load_from=straight.work_dir + '/iter_6.pth', images=2
    )
    message = refusal(tmp_path / 'total', total=4, **inside)
    assert 'update 2 of 4 in its epoch' in message
    assert 'total_batch_size is 4 and was 8' in message
    longer = dict(train_dataloader__dataset__length=40)
    message = refusal(tmp_path / 'images', **inside, **longer)
    assert 'images is 40 and was 32' in message


@pytest.mark.parametrize('name', ['epoch_1', 'iter_4'])
def test_what_goes_on_at_an_epochs_end(tmp_path, straight, name):
    """With another batch: the updates that are done stay done."""
    if name == 'epoch_1':
        first = train(tmp_path / 'first', train_cfg__max_epochs=1)
    else:
        first = straight
    runner = train(
        tmp_path / 'then',
        total=16,
        resume=True,
        load_from=f'{first.work_dir}/{name}.pth',
        train_cfg__max_epochs=3,
        **BY_UPDATE,
    )
    assert (runner.epoch, runner.iter) == (3, 4 + 2 * 2)
    assert runner.iter == runner.max_iters
    log = log_of(tmp_path / 'then')
    assert 'from here on total_batch_size is 16 and was 8;' in log
    # Inside the last epoch, whose beginning is no multiple of two.
    again = train(
        tmp_path / 'again',
        total=16,
        resume=True,
        load_from=str(tmp_path / 'then' / 'iter_7.pth'),
        train_cfg__max_epochs=3,
    )
    assert again.witness.losses == runner.witness.losses[-1:]


def test_a_checkpoint_of_another_loop_is_refused(tmp_path):
    """And none of this one goes on under a stock loop."""
    stock = dict(
        train_cfg=dict(_delete_=True, by_epoch=True, max_epochs=1),
        train_dataloader__batch_sampler=None,
    )
    cfg = update_config(tmp_path / 'stock', 8, 4, **stock)
    train_tiny(cfg)
    path = str(tmp_path / 'stock' / 'epoch_1.pth')
    message = refusal(tmp_path / 'then', resume=True, load_from=path)
    assert 'iter=8 counts micro-batches of 1 ranks x 4 images' in message
    del cfg.default_hooks['total_batch']
    cfg.experiment_name += '_again'
    train_tiny(cfg)
    message = refusal(tmp_path / 'then', resume=True, load_from=path)
    assert 'iter=8 does not say what it counts' in message

    train(tmp_path / 'ours', train_cfg__max_epochs=1)
    path = str(tmp_path / 'ours' / 'epoch_1.pth')
    message = refusal(tmp_path, resume=True, load_from=path, **stock)
    assert 'counts=updates -> micro-batches' in message
