# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""One recipe on different hardware, end to end through the stock Runner.

A small detector in float64, three updates of eight images. Where hardware
makes a difference that no recipe can take away, a test pins the difference.
"""

from __future__ import annotations

import os

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmdet_megdet.datasets import generate_shapes
from mmdet_megdet.runtime import adapt_config
from tests.distributed.ranks import run_ranks
from tests.tools.command import ROOT

pytestmark = pytest.mark.slow

CONFIG = ROOT / 'tests' / 'data' / 'small_detector.py'
UPDATES = 3
# float64 throughout, but mmdet adds float32's eps to the number of anchors
# that it divides by, at least the 84 of one image: 1.2e-7 / 84 = 1.4e-9,
# which three updates carry on.
CLOSE = dict(rtol=4e-9, atol=1e-10)
NORM = 'backbone.bn1'


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('shapes')
    # Two more, since one is without objects and left out.
    generate_shapes(folder, train=8 * UPDATES + 2, val=1, size=(64, 64))
    return f'{folder}/'


class Recorder(Hook):
    """Losses, and the first norm layer's buffers, after each iteration."""

    priority = 'VERY_LOW'

    def __init__(self):
        self.losses, self.buffers, self.counts = [], [], []

    def before_train(self, runner):
        head = self._module(runner).bbox_head
        targets = head.get_targets

        def count(*args, **kwargs):
            found = targets(*args, **kwargs)
            self.counts.append(found[-1])
            return found

        head.get_targets = count

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses.append(outputs['loss'].item())
        norm = self._module(runner).get_submodule(NORM)
        self.buffers.append(
            (norm.running_mean.clone(), norm.running_var.clone())
        )

    @staticmethod
    def _module(runner):
        return getattr(runner.model, 'module', runner.model)


def train(rank, world_size, data, work_dir, images, options):
    torch.set_default_dtype(torch.float64)
    os.environ['LOCAL_RANK'] = str(rank)
    cfg = Config.fromfile(CONFIG)
    cfg.work_dir = work_dir
    cfg.launcher = 'pytorch' if world_size > 1 else 'none'
    cfg.train_dataloader.dataset.data_root = data
    cfg.train_dataloader.batch_size = images
    cfg.train_dataloader.sampler.batch_size = images
    cfg.merge_from_dict(options)
    runner = Runner.from_cfg(adapt_config(cfg))
    recorder = Recorder()
    runner.register_hook(recorder)
    runner.train()
    state = getattr(runner.model, 'module', runner.model).state_dict()
    return dict(
        losses=recorder.losses,
        buffers=recorder.buffers,
        counts=recorder.counts,
        state={k: v for k, v in state.items() if v.is_floating_point()},
        accumulation=runner.optim_wrapper._accumulative_counts,
    )


def run(data, work_dir, ranks, images, **options):
    results = run_ranks(train, ranks, data, str(work_dir), images, options)
    # One model on all ranks, at the end.
    for result in results[1:]:
        for key, value in results[0]['state'].items():
            assert torch.equal(result['state'][key], value), key
    return results


def float64(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def losses_of_updates(results):
    """Mean over ranks and over the iterations of each update."""
    losses = float64([r['losses'] for r in results])
    return losses.mean(0).view(UPDATES, -1).mean(1)


def weights(result):
    return {k: v for k, v in result['state'].items() if 'running' not in k}


def assert_same_training(results, expected):
    torch.testing.assert_close(
        losses_of_updates(results), losses_of_updates(expected), **CLOSE
    )
    for key, value in weights(expected[0]).items():
        torch.testing.assert_close(results[0]['state'][key], value, **CLOSE)


@pytest.fixture(scope='module')
def one_process(data, tmp_path_factory):
    """(a): one process, eight images at once."""
    return run(data, tmp_path_factory.mktemp('a'), 1, 8)


def test_the_reference_learns(one_process):
    losses = losses_of_updates(one_process)
    assert losses.isfinite().all()
    assert losses[-1] < 0.99 * losses[0]
    assert one_process[0]['accumulation'] == 1


@pytest.mark.parametrize(('ranks', 'images'), [(4, 2), (8, 1)])
def test_ranks_side_by_side(data, tmp_path, one_process, ranks, images):
    """(b), (c): synchronised over all ranks, down to running statistics."""
    results = run(data, tmp_path, ranks, images)
    assert_same_training(results, one_process)
    for key, value in one_process[0]['state'].items():
        torch.testing.assert_close(results[0]['state'][key], value, **CLOSE)


def test_accumulated_with_fixed_statistics(data, tmp_path):
    """(d): two ranks x two images x two iterations, BatchNorm in eval mode."""
    fixed = {
        'model.backbone.norm_eval': True,
        'model.neck.norm_cfg': None,
    }
    expected = run(data, tmp_path / 'one', 1, 8, **fixed)
    results = run(data, tmp_path / 'two', 2, 2, **fixed)
    assert results[0]['accumulation'] == 2
    assert_same_training(results, expected)


@pytest.fixture(scope='module')
def accumulated(data, tmp_path_factory):
    """(e), one half: two ranks x two images x two iterations, BN size 4."""
    folder = tmp_path_factory.mktemp('accumulated')
    return run(
        data, folder, 2, 2, **{'default_hooks.sync_bn_group.bn_size': 4}
    )


@pytest.fixture(scope='module')
def side_by_side(data, tmp_path_factory):
    """(e), other half: four ranks x two images, two BN groups of 4 images."""
    folder = tmp_path_factory.mktemp('side')
    return run(
        data, folder, 4, 2, **{'default_hooks.sync_bn_group.bn_size': 4}
    )


def test_accumulating_equals_more_ranks(
    accumulated, side_by_side, one_process
):
    """(e): the invariance that makes the recipe portable."""
    assert accumulated[0]['accumulation'] == 2
    assert side_by_side[0]['accumulation'] == 1
    assert_same_training(accumulated, side_by_side)
    # Not for want of a difference: statistics over 4 images and over 8 are
    # not the same training.
    difference = losses_of_updates(accumulated) - losses_of_updates(
        one_process
    )
    assert difference.abs().max() > 1e-6


def test_running_statistics_are_where_they_differ(accumulated, side_by_side):
    """Micro-batches one after another, or side by side and then pooled."""
    (mean_1, var_1), (mean_2, var_2) = (
        side_by_side[rank]['buffers'][0] for rank in (0, 2)
    )
    # After the first update, momentum 0.1, from mean 0 and variance 1.
    mean, var = accumulated[0]['buffers'][1]
    torch.testing.assert_close(mean, 0.9 * mean_1 + mean_2, **CLOSE)
    torch.testing.assert_close(var, 0.9 * var_1 + (var_2 - 0.9), **CLOSE)


def test_losses_normalised_by_a_ranks_own_count(data, tmp_path):
    """With anchors that are ignored, images do not count alike any more.

    A rank divides by its own number of sampled anchors, and DDP averages over
    ranks: that is not one process's division by the number of all.
    """
    ignoring = {'model.train_cfg.rpn.assigner.neg_iou_thr': 0.2}
    one = run(data, tmp_path / 'one', 1, 8, **ignoring)
    four = run(data, tmp_path / 'four', 4, 2, **ignoring)
    losses = float64([r['losses'][0] for r in four])
    counts = float64([float(r['counts'][0]) for r in four])
    assert len(set(counts.tolist())) > 1
    weighted = (losses * counts).sum() / counts.sum()
    expected = float64(one[0]['losses'][0])
    torch.testing.assert_close(weighted, expected, **CLOSE)
    assert (losses.mean() - expected).abs() > 1e-6
