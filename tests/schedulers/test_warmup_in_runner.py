# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The warm-up under mmengine's stock loops, hooks and checkpoints."""

from fractions import Fraction

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import config_of
from tests.tools.command import TINY_CONFIG

LR = 0.04
WARMUP = dict(type='PreciseLinearWarmup', start_factor=0, begin=2, end=8)
MILESTONE = dict(type='MultiStepLR', milestones=[13], by_epoch=False)


class Recorder(Hook):
    """Notes the learning rates of a weight and a bias by iteration."""

    def __init__(self):
        self.used = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.used[runner.iter] = runner.optim_wrapper.get_lr()['lr'][:2]


def run(work_dir, *schedulers, **settings):
    """Train, of eight iterations an epoch; returns the learning rates."""
    cfg = config_of(
        TINY_CONFIG,
        work_dir,
        param_scheduler=list(schedulers),
        optim_wrapper__optimizer__lr=LR,
        optim_wrapper__paramwise_cfg=dict(bias_lr_mult=2.0),
        **settings,
    )
    runner, record = Runner.from_cfg(adapt_config(cfg)), Recorder()
    runner.register_hook(record)
    runner.train()
    return record.used


def by_iterations(number, counts, **settings):
    """Settings of a run with a checkpoint after each of its iterations."""
    checkpoint = dict(type='CheckpointHook', by_epoch=False, interval=1)
    return dict(
        train_cfg=dict(_delete_=True, by_epoch=False, max_iters=number),
        # The default sampler costs 2 s of mmengine's sleep per pass.
        train_dataloader__sampler__type='InfiniteSampler',
        optim_wrapper__accumulative_counts=counts,
        default_hooks__checkpoint=dict(checkpoint, _delete_=True),
        **settings,
    )


def warmup_lr(update):
    """The closed formula, rounded once."""
    factor = Fraction(update - 2, 6) if 2 <= update < 8 else 1
    return [float(Fraction(lr) * factor) for lr in (LR, 2 * LR)]


def test_warmup_in_epochs(tmp_path):
    in_epochs = dict(begin=0.25, end=1, by_epoch=True)
    warmup = WARMUP | in_epochs | dict(convert_to_iter_based=True)
    used = run(tmp_path, warmup, train_cfg__max_epochs=2)
    assert used == {i: warmup_lr(i) for i in range(16)}


@pytest.mark.parametrize('counts', [1, 3])
@pytest.mark.filterwarnings('error:.*optimizer.step')
def test_updates_are_counted_whatever_the_accumulation(tmp_path, counts):
    # 10 updates, the last of a single iteration under accumulation.
    iterations = 9 * counts + 1
    used = run(tmp_path, WARMUP, **by_iterations(iterations, counts))
    assert used == {i: warmup_lr(i // counts) for i in range(iterations)}


@pytest.mark.parametrize(
    'schedulers', [(WARMUP, MILESTONE), (MILESTONE, WARMUP)]
)
def test_resume_within_an_accumulation_and_with_another(tmp_path, schedulers):
    def resumed(counts, iteration):
        path = str(tmp_path / f'iter_{iteration}.pth')
        settings = by_iterations(30, counts, load_from=path, resume=True)
        return run(tmp_path / str(counts), *schedulers, **settings)

    straight = run(tmp_path, *schedulers, **by_iterations(30, counts=3))
    # 4 updates and 1 iteration done; the milestone is in the same iteration.
    assert resumed(3, 13) == {i: straight[i] for i in range(13, 30)}
    # 4 updates are done; the fifth takes 2 iterations now.
    for i, values in resumed(2, 12).items():
        gamma = 0.1 if i >= 13 else 1
        for value, wanted in zip(
            values, warmup_lr(4 + (i - 12) // 2), strict=True
        ):
            # The milestone's product, its ratio, our product: 3 U.
            assert abs(value - gamma * wanted) <= 2**-51 * gamma * wanted
