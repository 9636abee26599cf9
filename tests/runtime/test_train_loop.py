# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from itertools import count

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmdet_megdet.runtime import ConfigError, adapt_config
from tests.distributed.faults import diary
from tests.tools.command import ROOT

CONFIG = ROOT / 'tests' / 'data' / 'faults_config.py'
_COUNT = count()


@HOOKS.register_module(force=True)
class LastWords(Hook):
    """Raises ahead of an iteration; notes what it is told of that."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.told = []

    def before_train_iter(self, runner, *args, **kwargs):
        if runner.iter == self.iteration:
            raise LookupError('no such batch')

    def on_error(self, runner, error):
        self.told.append((runner.iter, error))


def build(work_dir, **settings) -> Runner:
    """One process: eight iterations an epoch, four updates."""
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict(
        {
            'work_dir': str(work_dir),
            # Runners of one name would share message hub and logger.
            'experiment_name': f'train_loop_{next(_COUNT)}',
            'train_cfg.max_epochs': 2,
            'train_dataloader.num_workers': 0,
            # Also inside epochs: after iteration 6, 12 and the last.
            'default_hooks.checkpoint.by_epoch': False,
            'default_hooks.checkpoint.interval': 6,
            'default_hooks.checkpoint.save_best': None,
            **{k.replace('__', '.'): v for k, v in settings.items()},
        }
    )
    return Runner.from_cfg(adapt_config(cfg))


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
    """The folder of a run of two epochs."""
    work_dir = tmp_path_factory.mktemp('straight')
    build(work_dir).train()
    return work_dir


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('iteration', [6, 12, 16])
def test_on_with_the_next_batch(straight, tmp_path, iteration, workers):
    runner = build(
        tmp_path,
        resume=True,
        load_from=str(straight / f'iter_{iteration}.pth'),
        train_dataloader__num_workers=workers,
    )
    runner.train()
    assert (runner.epoch, runner.iter) == (2, 16)
    if iteration < 16:
        assert diary(tmp_path, 0) == diary(straight, 0)[iteration:]
    else:
        assert not (tmp_path / 'diary_0.txt').exists()
    expected = torch.load(straight / 'iter_16.pth')['state_dict']
    for name, value in runner.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_an_epoch_of_another_length_is_refused(straight, tmp_path):
    runner = build(
        tmp_path,
        resume=True,
        load_from=str(straight / 'iter_6.pth'),
        train_dataloader__batch_size=2,
    )
    with pytest.raises(ConfigError, match=r'after 6 of 8 batches, and .* 16:'):
        runner.train()


def test_preemption_needs_it(tmp_path):
    runner = build(tmp_path, train_cfg__type='EpochBasedTrainLoop')
    with pytest.raises(ConfigError, match="type='ResumableTrainLoop'"):
        runner.train()


def test_hooks_are_told_of_an_error(tmp_path, capsys):
    runner = build(
        tmp_path, custom_hooks=[dict(type='LastWords', iteration=9)]
    )
    with pytest.raises(LookupError, match='no such batch'):
        runner.train()
    (hook,) = [h for h in runner.hooks if isinstance(h, LastWords)]
    ((iteration, error),) = hook.told
    assert (iteration, str(error)) == (9, 'no such batch')
    said = capsys.readouterr()
    line = 'rank 0 of 1 fails in epoch 2, iteration 2 of 8 (loading data)'
    assert f'{line}: LookupError: no such batch' in said.out + said.err
