# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Set-ups that started and did nothing, or never ended, through the Runner."""

import pytest
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler
from mmengine.runner import Runner
from torch.utils.data import DataLoader

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
    'no epoch': (dict(train_cfg__max_epochs=0), ('max_epochs=0',)),
    'no iteration': (
        dict(train_cfg=by_iter(-1), param_scheduler=None),
        ('max_iters=-1',),
    ),
    'epochs by iteration': (
        dict(train_cfg=by_iter(), param_scheduler=[STEP]),
        ('StepLR counts epochs', 'convert_to_iter_based=True'),
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


@pytest.mark.parametrize('hook', ['SetupCheckHook', 'DataCheckHook'])
def test_by_any_of_our_hooks(tmp_path, hook):
    assert 'max_epochs=0' in refusal(tmp_path, hook, train_cfg__max_epochs=0)


@pytest.mark.parametrize(
    'configs',
    [
        dict(type='mmengine.PreciseTwoStageWarmup', hold=9),
        dict(a=[STEP], b=[dict(type='PreciseExponentialWarmup', end=None)]),
    ],
)
def test_a_warmup_without_an_end(tmp_path, configs):
    """By the tools ahead of the class, which would say something else."""
    cfg = tiny_config(tmp_path, 4, 4)
    cfg.param_scheduler = configs
    with pytest.raises(ConfigError, match='has no end'):
        adapt_config(cfg)
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
