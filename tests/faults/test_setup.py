# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set-ups that started and did nothing, or never ended, through the Runner."""

import numpy as np
import pytest
from mmdet.datasets.samplers import (
    AspectRatioBatchSampler,
    MultiDataAspectRatioBatchSampler,
)
from mmengine.dataset import DefaultSampler
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import Runner
from torch.utils.data import DataLoader, RandomSampler

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.faults import setup
from mmdet_megdet.runtime import adapt_config
from mmdet_megdet.runtime.config import check_warmup_ends
from tests.data.tiny_run import tiny_config

STEP = dict(type='StepLR', step_size=2)


def by_iter(max_iters=4):
    return dict(type='IterBasedTrainLoop', max_iters=max_iters, _delete_=True)


def endless():
    return dict(type='InfiniteSampler', _delete_=True)


@DATA_SAMPLERS.register_module(force=True)
class TooMany(DefaultSampler):
    """Yields more than it says."""

    def __len__(self):
        return super().__len__() - 1


def refusal(tmp_path, hook='TotalBatchHook', **settings):
    """What is said before training, with one of our hooks alone."""
    cfg = tiny_config(tmp_path, 4, 4, **settings)
    hooks = {'logger': cfg.default_hooks.logger}
    if hook == 'TotalBatchHook':
        hooks['total_batch'] = cfg.default_hooks.total_batch
    elif hook is not None:
        hooks['ours'] = dict(type=hook)
    cfg.default_hooks = hooks
    runner = Runner.from_cfg(cfg)
    with pytest.raises(ConfigError) as error:
        runner.train()
    assert runner.iter == 0
    return str(error.value)


CASES = {
    'no batch': (
        dict(train_dataloader__dataset__length=3,
             train_dataloader__drop_last=True),
        ('train_dataloader makes no batch', '3 image(s)', 'takes 4'),
    ),
    'no batch by iteration': (
        dict(train_dataloader__dataset__length=3, train_cfg=by_iter(),
             train_dataloader__drop_last=True, param_scheduler=None),
        ('train_dataloader makes no batch',),
    ),
    'no validation': (
        dict(val_dataloader__dataset__length=0),
        ('val_dataloader makes no batch', '0 image(s)'),
    ),
    'endless': (
        dict(train_dataloader__sampler=endless()),
        ('InfiniteSampler', "sampler=dict(type='DefaultSampler'"),
    ),
    'endless validation': (
        dict(val_dataloader__sampler=endless(), train_cfg=by_iter(),
             param_scheduler=None),
        ('val_dataloader: InfiniteSampler',),
    ),
    'more than it says': (
        dict(train_dataloader__sampler__type='TooMany'),
        ('TooMany gives more than the 31 it says',),
    ),
    'no epoch': (dict(train_cfg__max_epochs=0), ('max_epochs=0',)),
    'no iteration': (
        dict(train_cfg=by_iter(-1), param_scheduler=None),
        ('max_iters=-1',),
    ),
    'val_interval': (dict(train_cfg__val_interval=0), ('val_interval: 0',)),
    'dynamic_intervals': (
        dict(train_cfg__dynamic_intervals=[(3, 0)]),
        ('dynamic_intervals, from 3 on: 0',),
    ),
    'epochs by iteration': (
        dict(train_cfg=by_iter(), param_scheduler=[STEP]),
        ('StepLR counts epochs', 'convert_to_iter_based=True'),
    ),
    'warm-up in epochs by iteration': (
        dict(train_cfg=by_iter(), param_scheduler=[
            dict(type='PreciseCosineWarmup', end=2, by_epoch=True)]),
        ('PreciseCosineWarmup counts epochs',),
    ),
    'converted without an end': (
        dict(train_cfg=by_iter(),
             param_scheduler=[dict(STEP, convert_to_iter_based=True)]),
        ('StepLR has no end', 'one epoch'),
    ),
    'plateau without validation': (
        dict(val_cfg=None, val_dataloader=None, val_evaluator=None,
             param_scheduler=[dict(type='ReduceOnPlateauLR')]),
        ('ReduceOnPlateauLR goes by the results of validation',),
    ),
    'no end': (
        dict(param_scheduler=[dict(type='PreciseLinearWarmup')]),
        ('PreciseLinearWarmup has no end',),
    ),
    # 8 iterations an epoch; the warm-up is over after 20.
    'another scheduler': (
        dict(param_scheduler=[
            dict(type='PreciseLinearWarmup', end=20),
            dict(type='CosineAnnealingLR', T_max=4, eta_min=1e-3)]),
        ('CosineAnnealingLR(begin=0, end=4, in epochs)',
         'PreciseLinearWarmup(begin=0, end=20, in updates)'),
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', CASES)
def test_refused_before_training(tmp_path, name):
    settings, told = CASES[name]
    message = refusal(tmp_path, **settings)
    for part in told:
        assert part in message


@pytest.mark.parametrize(
    'hook', ['SetupCheckHook', 'SyncBNGroupHook', 'DataCheckHook',
             'PreemptionHook'],
)  # fmt: skip
def test_by_any_of_our_hooks(tmp_path, hook):
    assert 'max_epochs=0' in refusal(tmp_path, hook, train_cfg__max_epochs=0)


def test_a_runner_that_validates_first_is_looked_at_again(tmp_path):
    cfg = tiny_config(tmp_path, 4, 4, train_cfg__max_epochs=0)
    cfg.default_hooks = dict(check=dict(type='SetupCheckHook'))
    runner = Runner.from_cfg(cfg)
    runner.val()
    with pytest.raises(ConfigError, match='max_epochs=0'):
        runner.train()


def test_converted_from_epochs_it_steps(tmp_path):
    cfg = tiny_config(
        tmp_path, 4, 4, train_cfg=by_iter(9),
        param_scheduler=[dict(STEP, convert_to_iter_based=True, step_size=1,
                              end=9)],
        train_dataloader__sampler=endless(),
    )  # fmt: skip
    cfg.default_hooks = dict(check=dict(type='SetupCheckHook'))
    runner = Runner.from_cfg(cfg)
    runner.train()
    # An epoch of an endless sampler is its data set: 32 images / 4.
    (rate,) = runner.optim_wrapper.get_lr()['lr']
    assert rate == pytest.approx(0.005)


@pytest.mark.parametrize(
    'configs',
    [
        dict(type='mmengine.PreciseTwoStageWarmup', hold=9),
        [STEP, dict(type='PreciseCosineWarmupMomentum', by_epoch=False)],
        dict(a=[STEP], b=[dict(type='PreciseExponentialWarmup', end=None)]),
        [dict(type='PreciseLinearWarmup', by_epoch=True,
              convert_to_iter_based=True)],
    ],
)  # fmt: skip
def test_a_warmup_without_an_end(tmp_path, configs):
    with pytest.raises(ConfigError, match='has no end'):
        check_warmup_ends(configs)
    # By the tools ahead of the class, which would say something else.
    cfg = tiny_config(tmp_path, 4, 4)
    cfg.param_scheduler = configs
    with pytest.raises(ConfigError, match='has no end'):
        adapt_config(cfg)
    check_warmup_ends(None)
    check_warmup_ends([STEP, dict(type='PreciseLinearWarmup', end=9)])


def test_one_rank_may_have_nothing_to_validate():
    loader = DataLoader(range(1), batch_size=1)
    setup.check_lengths(loader, 'val', [1, 0])
    for kind, lengths in (('train', [1, 0]), ('test', [0, 0])):
        with pytest.raises(ConfigError, match=f'{kind}_dataloader makes no'):
            setup.check_lengths(loader, kind, lengths)


def test_ranks_with_different_numbers_of_batches():
    setup.check_same_lengths([4, 4])
    with pytest.raises(
        ConfigError, match=r'4 on rank 0 and 3 on rank 1.*round'
    ):
        setup.check_same_lengths([4, 3])


class Images(list):
    """Widths beside a height of 10."""

    def get_data_info(self, index):
        return dict(width=self[index], height=10)

    def get_dataset_source(self, index):
        return 0


def make_loader(widths, images, drop_last=True):
    batches = AspectRatioBatchSampler(
        DefaultSampler(Images(widths), seed=0), images, drop_last
    )
    return DataLoader(batches.sampler.dataset, batch_sampler=batches)


def test_orientations_where_ranks_can_differ():
    """On one rank here; see test_recipe's epochs for several."""
    mixed, landscapes = [9, 11] * 8, [11] * 16
    with pytest.raises(ConfigError, match=r'16 images.*UpdateTrainLoop'):
        setup.check_orientations(make_loader(mixed, 4))
    for loader in (
        make_loader(landscapes, 4),
        make_loader(mixed, 3),
        make_loader(mixed, 1),
        make_loader(mixed, 4, drop_last=False),
        DataLoader(Images(mixed), batch_size=4, drop_last=True),
    ):
        setup.check_orientations(loader)
    several = MultiDataAspectRatioBatchSampler(
        DefaultSampler(Images(mixed), seed=0), [3], num_datasets=1
    )
    with pytest.raises(ConfigError, match='MultiDataAspectRatio'):
        setup.check_orientations(
            DataLoader(several.sampler.dataset, batch_sampler=several)
        )


def test_what_is_drawn_for_the_check_is_put_back():
    loader = DataLoader(range(9), sampler=RandomSampler(range(9)))
    np.random.seed(3)
    before = np.random.rand(2)
    np.random.seed(3)
    setup.check_end(loader, 'train')
    assert (np.random.rand(2) == before).all()
