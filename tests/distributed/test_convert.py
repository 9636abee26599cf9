# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Converted models on several gloo ranks, by function and by the Runner."""

from __future__ import annotations

import copy
import os

import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.hooks import EMAHook
from mmengine.runner import Runner
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import MegDetDistributedDataParallel
from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    convert_batch_norm,
    resolve_bn_groups,
    revert_to_batch_norm,
)
from tests.distributed.ranks import run_ranks
from tests.tools.command import TINY_CONFIG

IMAGES = 3  # per rank

# In float64. Along the two-step training below no value is the result of more
# than 10^3 roundings one after another, and no BatchNorm divides by less than
# a tenth, three in a row each way.
TOLERANCE = 1e3 * 2.0**-53 * 1e3


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.SyncBatchNorm(6),
        nn.ReLU(),
        nn.Flatten(2),
        nn.BatchNorm1d(6, momentum=None),
        nn.Flatten(),
        nn.Linear(24, 2),
    ).double()


def images(ranks):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(IMAGES * ranks, 3, 6, 6, generator=generator)
    level = torch.randn(IMAGES * ranks, 1, 1, 1, generator=generator)
    return (x + level).double()


def two_steps(model, optimizer, x):
    for _ in range(2):
        optimizer.zero_grad()
        output = model(x)
        output.square().sum(1).mean().backward()
        optimizer.step()
    return output.detach()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train_converted(rank, world_size, ranks_per_group):
    """The optimizer first, then conversion, then DDP."""
    model = network()
    optimizer = sgd(model)
    bn_size = None if ranks_per_group is None else ranks_per_group * IMAGES
    convert_batch_norm(model, bn_size)
    resolve_bn_groups(model, IMAGES)
    wrapped = MegDetDistributedDataParallel(model)
    x = images(world_size).split(IMAGES)[rank]
    output = two_steps(wrapped, optimizer, x)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        before = model(x)
        after = revert_to_batch_norm(model)(x)
    assert torch.equal(before, after)
    kinds = [type(m).__name__ for m in model if 'Batch' in str(type(m))]
    return dict(output=output, state=state, kinds=kinds)


def test_trains_like_batch_norm_on_the_whole_batch():
    x = images(2)
    reference = revert_sync(network())
    output = two_steps(reference, sgd(reference), x)
    results = run_ranks(train_converted, 2, None)
    close(torch.cat([r['output'] for r in results]), output, 'output')
    for result in results:
        assert result['kinds'] == ['BatchNorm2d', 'BatchNorm2d', 'BatchNorm1d']
        for name, value in reference.state_dict().items():
            close(result['state'][name], value, name)


def test_bn_groups_of_a_converted_model():
    """Two groups of two ranks: each as one BatchNorm on its six images."""
    results = run_ranks(train_converted, 4, 2)
    groups = [revert_sync(network()) for _ in range(2)]
    optimizers = [sgd(group) for group in groups]
    halves = images(4).split(2 * IMAGES)
    for _ in range(2):
        outputs = []
        for group, x in zip(groups, halves, strict=True):
            group.zero_grad()
            outputs.append(group(x))
            outputs[-1].square().sum(1).mean().backward()
        for a, b in zip(*(g.parameters() for g in groups), strict=True):
            a.grad = b.grad = (a.grad + b.grad) / 2
        for optimizer in optimizers:
            optimizer.step()
    for rank, result in enumerate(results):
        own = outputs[rank // 2].split(IMAGES)[rank % 2]
        close(result['output'], own, 'output')
        for name, value in groups[rank // 2].state_dict().items():
            close(result['state'][name], value, name)
    one, other = (results[rank]['state']['1.running_mean'] for rank in (0, 2))
    assert not torch.allclose(one, other)


def revert_sync(model):
    """nn.SyncBatchNorm refuses CPUs."""
    model[4] = nn.BatchNorm2d(6).double()
    return model


def close(got, true, name):
    error = (got - true).abs().max()
    assert error <= TOLERANCE * true.abs().max(), (name, error)


def convert_with_groups(rank, world_size, bn_size):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[rank // 2]
    model = nn.Sequential(
        nn.BatchNorm2d(3), nn.SyncBatchNorm(3, process_group=pair)
    )
    try:
        convert_batch_norm(model, bn_size)
    except ConfigError as error:
        assert type(model[0]) is nn.BatchNorm2d
        return str(error)
    pickled = copy.deepcopy(model)  # a group kept somewhere would not let it
    return [type(layer) is MegDetSyncBN for layer in pickled]


def test_sync_batch_norm_with_a_group_of_its_own():
    for message in run_ranks(convert_with_groups, 4, None):
        assert '1 is a SyncBatchNorm that synchronises over' in message
        assert 'of 2 of 4 ranks' in message
    assert run_ranks(convert_with_groups, 4, 8) == [[True, True]] * 4


def stock_runner(rank, world_size, work_dir, options):
    """MMEngine's Runner from a config, without any tool of this package."""
    os.environ['LOCAL_RANK'] = str(rank)
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.merge_from_dict(
        {
            'launcher': 'pytorch',
            'work_dir': work_dir,
            'log_level': 'ERROR',
            'train_cfg.max_epochs': 1,
            'model_wrapper_cfg.type': 'MegDetDistributedDataParallel',
            **options,
        }
    )
    return Runner.from_cfg(cfg)


def train_with_runner(*args):
    runner = stock_runner(*args)
    layer = runner.model.module.norm
    runner.train()
    assert runner.model.module.norm is layer
    averaged = [h.ema_model for h in runner.hooks if isinstance(h, EMAHook)]
    return dict(
        kind=type(layer),
        ema=[type(model.module.norm) for model in averaged],
        groups=(layer.bn_size, layer.ranks_per_group),
        state=runner.model.state_dict(),
        ema_state=[model.state_dict() for model in averaged],
    )


PLAIN = {'model.norm_cfg': None}
CONVERT = {**PLAIN, 'model_wrapper_cfg.convert_bn': True}
EMA = {'custom_hooks': [dict(type='EMAHook', update_buffers=True)]}


def test_one_line_in_a_config_is_as_good_as_a_norm_cfg(tmp_path):
    """EMAHook copies the model after it was wrapped: it gets our layers."""
    built = run_ranks(train_with_runner, 2, str(tmp_path), EMA)
    converted = run_ranks(train_with_runner, 2, str(tmp_path), CONVERT | EMA)
    for one, other in zip(built, converted, strict=True):
        assert one['kind'] is other['kind'] is MegDetSyncBN
        assert one['ema'] == other['ema'] == [MegDetSyncBN]
        for states in ('state', 'ema_state'):
            assert_equal([one[states]], [other[states]])
    assert_equal([converted[0]['state']], [converted[1]['state']])


def assert_equal(states, others):
    for state, other in zip(states, others, strict=True):
        if isinstance(state, list):
            assert_equal(state, other)
            continue
        assert list(state) == list(other)
        for name, value in state.items():
            assert torch.equal(value, other[name]), name


def test_bn_size_and_comm_hook_by_the_config(tmp_path):
    options = {
        'model_wrapper_cfg.bn_size': 4,  # one rank's images
        'model_wrapper_cfg.comm_hook': 'fp16_compress',
        'default_hooks.sync_bn_group': dict(type='SyncBNGroupHook'),
    }
    compressed = run_ranks(
        train_with_runner, 2, str(tmp_path), CONVERT | options
    )
    for result in compressed:
        assert result['groups'] == (4, 1)
        assert_equal([result['state']], [compressed[0]['state']])
    del options['model_wrapper_cfg.comm_hook']
    exact = run_ranks(train_with_runner, 2, str(tmp_path), CONVERT | options)
    name = 'module.conv.weight'
    assert not torch.equal(
        compressed[0]['state'][name], exact[0]['state'][name]
    )
