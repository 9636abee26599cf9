# Copyright (c) mmdet_megdet contributors. All rights reserved.
import itertools
import multiprocessing
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, DataLoader, Dataset

from mmdet_megdet.hooks import EpochSeedHook
from mmdet_megdet.updates import seed_generators

_COUNT = itertools.count()


def draw():
    """One number of each global generator."""
    return (
        random.random(),
        float(np.random.rand()),
        int(torch.randint(2**62, ())),
    )


class Augmented(Dataset):
    """The index and the random numbers that an augmentation would draw."""

    opened = False

    def __len__(self):
        return 8

    def __getitem__(self, index):
        python, numpy, _ = draw()
        return torch.tensor([index, python, numpy, torch.rand(())])


class OpenedAugmented(Augmented):
    def __getitem__(self, index):
        return torch.tensor(float(self.opened)), super().__getitem__(index)


def open_dataset(worker_id):
    torch.utils.data.get_worker_info().dataset.opened = True
    seed_generators(0, 0, 0)  # to be overruled


def start_epoch(hook, loader, epoch, rank=0, seed=3):
    """The calls of a Runner up to the iteration over the loader."""
    runner = SimpleNamespace(
        seed=seed,
        epoch=epoch,
        rank=rank,
        train_dataloader=loader,
        train_loop=None,
        _randomness_cfg=dict(seed=seed),
    )
    if epoch == 0:
        hook.before_run(runner)
        hook.before_train(runner)
    hook.before_train_epoch(runner)


@pytest.mark.parametrize('persistent_workers', [True, False])
def test_worker_streams(persistent_workers):
    def epochs(rank):
        hook = EpochSeedHook()
        loader = DataLoader(
            Augmented(),
            batch_size=2,
            num_workers=2,
            persistent_workers=persistent_workers,
        )
        for epoch in range(3):
            start_epoch(hook, loader, epoch, rank)
            yield torch.cat(list(loader))[:, 1:]
            # no workers of former epochs are left over
            assert len(multiprocessing.active_children()) <= 2

    first = torch.cat(list(epochs(rank=0)))
    assert torch.equal(torch.cat(list(epochs(rank=0))), first)
    both = torch.cat([first, *epochs(rank=1)])
    for column in both.T:
        assert len(column.unique()) == len(both) == 2 * 3 * 8


def test_the_loaders_own_worker_init_fn_still_runs():
    hook = EpochSeedHook()
    loader = DataLoader(
        OpenedAugmented(), num_workers=1, worker_init_fn=open_dataset
    )
    epochs = []
    for epoch in range(2):
        start_epoch(hook, loader, epoch)
        opened, samples = zip(*loader, strict=True)
        assert torch.cat(opened).tolist() == [1.0] * 8
        epochs.append(torch.cat(samples))
    assert not torch.equal(*epochs)


class TinyModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, *samples, mode):
        inputs = torch.nn.functional.dropout(torch.stack(samples), 0.25)
        return dict(loss=self.layer(inputs).square().mean())


class RecordSamples(Hook):
    def __init__(self):
        self.samples = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.samples[runner.iter] = torch.stack(data_batch).tolist()


def run(
    work_dir,
    epoch_seed=True,
    loader=None,
    max_epochs=4,
    train_cfg=None,
    randomness=None,
    **kwargs,
):
    """Train in a new Runner; returns it, the samples used, the weights."""
    record = RecordSamples()
    loader = loader or dict(batch_size=2, num_workers=0)
    hook = dict(type='EpochSeedHook')
    runner = Runner(
        model=TinyModel(),
        work_dir=str(work_dir),
        train_dataloader=dict(
            dict(
                dataset=Augmented(),
                sampler=dict(type='DefaultSampler', shuffle=True),
            ),
            **loader,
        ),
        train_cfg=train_cfg or dict(by_epoch=True, max_epochs=max_epochs),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.001, momentum=0.9)),
        default_hooks=dict(epoch_seed=hook) if epoch_seed else None,
        custom_hooks=[record],
        # Runner.resume writes into this dict, also where it is the default
        # that all Runners of a process share.
        randomness=randomness or dict(seed=None),
        # Runners of one name would share message hub and logger.
        experiment_name=f'epoch_seed_{next(_COUNT)}',
        **kwargs,
    )
    runner.train()
    return runner, record.samples, runner.model.state_dict()


def straight_and_resumed(tmp_path, **kwargs):
    """Four epochs, and the last two of them again from a checkpoint."""
    straight = run(tmp_path, **kwargs)
    resumed = run(
        tmp_path / 'resumed',
        load_from=str(tmp_path / 'epoch_2.pth'),
        resume=True,
        **kwargs,
    )
    assert sorted(resumed[1]) == list(range(8, 16))
    return straight, resumed


def assert_same_run(straight, resumed):
    _, samples, weights = straight
    _, resumed_samples, resumed_weights = resumed
    assert resumed_samples == {i: samples[i] for i in range(8, 16)}
    for name, weight in weights.items():
        assert torch.equal(resumed_weights[name], weight)


@pytest.fixture
def unsafe_load(monkeypatch):
    # Under torch >= 2.6 mmengine alone does not load what it saved.
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')


@pytest.mark.usefixtures('unsafe_load')
@pytest.mark.parametrize(
    'workers',
    [
        dict(num_workers=0),
        dict(num_workers=2, persistent_workers=False),
        dict(num_workers=2, persistent_workers=True),
    ],
)
def test_resumed_is_straight(tmp_path, workers):
    straight, resumed = straight_and_resumed(
        tmp_path,
        loader=dict(batch_size=2, **workers),
        randomness=dict(seed=3),
    )
    assert_same_run(straight, resumed)
    numbers = torch.tensor(list(straight[1].values()))[..., 1:]
    for column in numbers.flatten(0, 1).T:
        assert len(column.unique()) == 32  # no epoch repeats another


@pytest.mark.usefixtures('unsafe_load')
def test_without_the_hook_it_is_not(tmp_path):
    straight, resumed = straight_and_resumed(
        tmp_path, epoch_seed=False, randomness=dict(seed=3)
    )
    assert resumed[1][8] != straight[1][8]
    assert not torch.equal(
        resumed[2]['layer.weight'], straight[2]['layer.weight']
    )


@pytest.fixture
def warned(monkeypatch):
    """Messages of the current logger at WARNING."""
    messages = []
    callHandlers = MMLogger.callHandlers

    def keep(self, record):
        if record.levelname == 'WARNING':
            messages.append(record.getMessage())
        callHandlers(self, record)

    monkeypatch.setattr(MMLogger, 'callHandlers', keep)
    return messages


@pytest.mark.usefixtures('unsafe_load')
@pytest.mark.parametrize(
    'loader',
    [
        dict(batch_size=2, num_workers=0),
        dict(
            batch_size=2,
            num_workers=2,
            batch_sampler=dict(type=BatchSampler, drop_last=True),
        ),
    ],
)
def test_a_run_without_a_seed_adopts_the_checkpoints(tmp_path, loader, warned):
    straight, resumed = straight_and_resumed(tmp_path, loader=loader)
    assert resumed[0].seed == straight[0].seed
    assert_same_run(straight, resumed)
    (told,) = [text for text in warned if 'EpochSeedHook' in text]
    assert f'continues with seed {straight[0].seed} ' in told


@pytest.mark.usefixtures('unsafe_load')
@pytest.mark.parametrize(('own', 'then'), [(None, 3), (7, 7)])
def test_seed_changed_in_the_config(tmp_path, own, then):
    sampler = dict(type='DefaultSampler', shuffle=True)
    if own is not None:
        sampler.update(seed=own)
    loader = dict(batch_size=2, num_workers=0, sampler=sampler)
    run(tmp_path, loader=loader, max_epochs=1, randomness=dict(seed=3))
    runner, _, _ = run(
        tmp_path / 'resumed',
        loader=loader,
        max_epochs=2,
        randomness=dict(seed=4),
        load_from=str(tmp_path / 'epoch_1.pth'),
        resume=True,
    )
    assert runner.seed == 3
    # A seed that the config gives to the sampler itself stays.
    assert runner.train_dataloader.sampler.seed == then


@pytest.mark.usefixtures('unsafe_load')
def test_load_from_adopts_nothing(tmp_path, warned):
    run(tmp_path, max_epochs=1, randomness=dict(seed=3))
    runner, _, _ = run(
        tmp_path / 'loaded',
        max_epochs=1,
        randomness=dict(seed=4),
        load_from=str(tmp_path / 'epoch_1.pth'),
    )
    assert runner.seed == 4
    assert runner.train_dataloader.sampler.seed == 4
    assert not [text for text in warned if 'EpochSeedHook' in text]


def test_what_cannot_work_is_refused(tmp_path):
    with pytest.raises(TypeError, match='IterBasedTrainLoop'):
        run(tmp_path, train_cfg=dict(by_epoch=False, max_iters=2))
    with pytest.raises(ValueError, match='Remove diff_rank_seed'):
        run(tmp_path, randomness=dict(seed=3, diff_rank_seed=True))
