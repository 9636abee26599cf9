# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The same training on any hardware, end to end through the stock Runner."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Some are imported here for the ranks, which would do so one by one.
import matplotlib.pyplot  # noqa: F401
import pytest
import torch
import torch._dynamo
import torch.utils.cpp_extension
from mmengine.config import Config
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner
from torch.multiprocessing import ProcessExitedException

from mmdet_megdet.demo_data import generate_shapes
from mmdet_megdet.runtime import adapt_config
from tests.data import mean_detector  # noqa: F401
from tests.distributed.ranks import run_ranks
from tests.tools.command import ROOT

pytestmark = pytest.mark.slow

CONFIG = ROOT / 'tests' / 'data' / 'mean_detector_config.py'
UPDATES = 30
# World size, images per GPU, of eight images an update.
REFERENCE = (1, 4)
SPLITS = [(2, 2), (2, 4), (4, 1), (4, 2), (8, 1)]
# What the stock loop needs in the place of ours.
STOCK = {
    'train_cfg': dict(type='IterBasedTrainLoop', max_iters=3, _delete_=True),
    'train_dataloader.batch_sampler': None,
    'default_hooks.checkpoint.interval': 3,
}
# mmdet's own head, which divides by a rank's count of positive anchors.
RETINA = {
    'train_cfg.max_updates': 3,
    'default_hooks.checkpoint.interval': 3,
    'model.bbox_head': dict(
        _delete_=True,
        type='RetinaHead',
        num_classes=5,
        in_channels=8,
        feat_channels=8,
        stacked_convs=1,
        anchor_generator=dict(
            type='AnchorGenerator', scales=[4], ratios=[1.0], strides=[4, 8]
        ),
        loss_bbox=dict(type='L1Loss'),
    ),
    'model.train_cfg': dict(
        assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4),
        sampler=dict(type='PseudoSampler'),
        allowed_border=-1,
        pos_weight=-1,
    ),
}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('shapes')
    # Two of them without objects, which are left out.
    generate_shapes(folder, train=31, val=1, size=(64, 64))
    return f'{folder}/'


class Recorder(Hook):
    """Writes down each update, for the case that the process is killed."""

    priority = 'VERY_LOW'

    def __init__(self, path: Path, kill_at: int | None) -> None:
        self.path, self.kill_at = path, kill_at

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        (ema,) = [hook for hook in runner.hooks if isinstance(hook, EMAHook)]
        parameters = ema.ema_model.module.parameters()
        mean = torch.cat([p.detach().flatten() for p in parameters]).mean()
        (rate,) = runner.optim_wrapper.get_lr()['lr']
        with self.path.open('a') as file:
            print(
                runner.iter, outputs['loss'].item(), rate, mean.item(),
                file=file,
            )  # fmt: skip
        if runner.iter + 1 == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def train(rank, world_size, data, work_dir, images, options, kill_at):
    torch.set_default_dtype(torch.float64)
    # Formatting it would take longer than the training.
    Config.pretty_text = ''
    os.environ['LOCAL_RANK'] = str(rank)
    cfg = Config.fromfile(CONFIG)
    cfg.work_dir = work_dir
    cfg.launcher = 'pytorch' if world_size > 1 else 'none'
    cfg.train_dataloader.dataset.data_root = data
    cfg.train_dataloader.batch_size = images
    cfg.merge_from_dict(options)
    runner = Runner.from_cfg(adapt_config(cfg))
    path = Path(work_dir) / f'{world_size}x{images}_{rank}.txt'
    runner.register_hook(Recorder(path, kill_at))
    runner.train()


def train_ranks(data, work_dir, split, kill_at=None, **options):
    world_size, images = split
    run_ranks(train, world_size, data, str(work_dir), images, options, kill_at)


class Run:
    """What a run, killed or not, has left behind.

    Attributes:
        first: Number of the first update.
        losses: Of each update, the mean over ranks.
        rates: Learning rate after each update.
        ema: Mean of the averaged weights after each update.
    """

    def __init__(self, work_dir, split):
        self.work_dir = work_dir
        world_size, images = split
        ranks = []
        for rank in range(world_size):
            path = work_dir / f'{world_size}x{images}_{rank}.txt'
            lines = [line.split() for line in path.read_text().splitlines()]
            ranks.append([[float(word) for word in line] for line in lines])
        table = torch.tensor(ranks, dtype=torch.float64)
        # Averaged weights and rates are the same on all ranks.
        assert (table[:, :, 2:] == table[:1, :, 2:]).all()
        self.first = int(table[0, 0, 0])
        self.losses = table[:, :, 1].mean(0)
        self.rates, self.ema = table[0, :, 2:].T

    def weights(self, update):
        """Model and averaged model, with their running statistics."""
        path = self.work_dir / f'iter_{update}.pth'
        checkpoint = torch.load(path, weights_only=False)
        return {
            (part, name): value
            for part in ('state_dict', 'ema_state_dict')
            for name, value in checkpoint[part].items()
        }


def assert_same(run, expected):
    end = run.first + len(run.losses)
    for name, bound in [('losses', 1e-9), ('rates', 0), ('ema', 1e-9)]:
        torch.testing.assert_close(
            getattr(run, name),
            getattr(expected, name)[run.first : end],
            rtol=bound,
            atol=0,
        )


def assert_same_weights(run, expected, update=UPDATES):
    found, weights = run.weights(update), expected.weights(update)
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-8)


@pytest.fixture(scope='module')
def reference(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp('reference')
    train_ranks(data, folder, REFERENCE)
    return Run(folder, REFERENCE)


def test_the_reference_learns(reference):
    assert len(reference.losses) == UPDATES
    assert reference.losses[-3:].mean() < 0.8 * reference.losses[:3].mean()
    moved = reference.weights(UPDATES)
    for (part, name), value in reference.weights(10).items():
        if name.endswith(('weight', 'running_mean', 'running_var')):
            assert (moved[part, name] - value).abs().max() > 1e-5, name


@pytest.mark.parametrize('split', SPLITS, ids=str)
def test_splits(data, tmp_path, reference, split):
    train_ranks(data, tmp_path, split)
    run = Run(tmp_path, split)
    assert_same(run, reference)
    assert_same_weights(run, reference)


def test_a_chain_of_machines(data, tmp_path, reference):
    """Killed inside an epoch, twice, two updates after a checkpoint."""
    for split, kill_at in [((8, 1), 12), ((2, 4), 22)]:
        with pytest.raises(ProcessExitedException, match='SIGKILL'):
            train_ranks(data, tmp_path, split, kill_at, resume=True)
        run = Run(tmp_path, split)
        assert run.first + len(run.losses) == kill_at
        assert_same(run, reference)
    train_ranks(data, tmp_path, (4, 2), resume=True)
    run = Run(tmp_path, (4, 2))
    assert (run.first, len(run.losses)) == (20, 10)
    assert_same(run, reference)
    assert_same_weights(run, reference)


def test_stock_parts_do_no_such_thing(data, tmp_path, reference):
    split = (2, 4)
    train_ranks(data, tmp_path, split, **STOCK)
    run = Run(tmp_path, split)
    difference = run.losses / reference.losses[: len(run.losses)] - 1
    assert difference.abs().min() > 1e-3


@pytest.mark.parametrize('split', [(2, 2), (4, 2)])
def test_losses_normalised_by_unit(data, tmp_path, split):
    """One rank with four images divides by their count without the hook."""
    losses = {}
    for name, run_split, hook in [
        ('one', REFERENCE, None),
        ('stock', split, None),
        ('units', split, dict(type='UnitLossHook')),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        options = RETINA | {'default_hooks.unit_loss': hook}
        train_ranks(data, folder, run_split, **options)
        losses[name] = Run(folder, run_split).losses
    difference = {k: (v / losses['one'] - 1).abs() for k, v in losses.items()}
    # mmdet adds float32's eps to the count.
    assert difference['units'].max() < 1e-6
    assert difference['stock'][0] > 1e-3
