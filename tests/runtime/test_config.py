# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
from mmengine.config import Config

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import (
    adapt_config,
    check_auto_scale_lr,
    find_hook,
    read_config,
)
from tests.tools.command import TINY_CONFIG

OURS = 'MegDetDistributedDataParallel'
STOCK = 'MMDistributedDataParallel'


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ({}, dict(type=OURS)),
        (
            dict(find_unused_parameters=True),
            dict(type=OURS, find_unused_parameters=True),
        ),
        (dict(model_wrapper_cfg=None), dict(type=OURS)),
        (
            dict(model_wrapper_cfg=dict(bucket_cap_mb=5)),
            dict(type=OURS, bucket_cap_mb=5),
        ),
        (
            dict(
                model_wrapper_cfg=dict(type=STOCK, broadcast_buffers=True),
                find_unused_parameters=False,
            ),
            dict(
                type=OURS,
                broadcast_buffers=True,
                find_unused_parameters=False,
            ),
        ),
        (
            dict(
                model_wrapper_cfg=dict(type=OURS, find_unused_parameters=True),
                find_unused_parameters=True,
            ),
            dict(type=OURS, find_unused_parameters=True),
        ),
        (
            dict(model_wrapper_cfg=dict(type='TheirOwn', fast=True)),
            dict(type='TheirOwn', fast=True),
        ),
    ],
)
def test_wrapper(given, expected):
    cfg = Config(given)
    assert adapt_config(cfg).model_wrapper_cfg == expected
    assert cfg.to_dict() == given  # as the user wrote it


@pytest.mark.parametrize('asked', [True, False])
def test_contradiction(asked):
    cfg = Config(
        dict(
            find_unused_parameters=asked,
            model_wrapper_cfg=dict(find_unused_parameters=not asked),
        )
    )
    with pytest.raises(ConfigError, match=f'={asked} contradicts'):
        adapt_config(cfg)


def test_own_wrapper_would_not_hear():
    cfg = Config(
        dict(find_unused_parameters=True, model_wrapper_cfg=dict(type='Own'))
    )
    with pytest.raises(
        ConfigError, match='does not reach the model wrapper Own'
    ):
        adapt_config(cfg)


OURS_DEEP_INSIDE = dict(
    type='D', neck=[dict(stages=(dict(norm_cfg=dict(type='MegDetSyncBN')),))]
)


@pytest.mark.parametrize(
    'ours',
    [
        dict(model=OURS_DEEP_INSIDE),
        dict(model_wrapper_cfg=dict(convert_bn=True)),
    ],
)
@pytest.mark.parametrize('sync_bn', ['torch', 'mmcv'])
def test_sync_bn_would_undo_ours(ours, sync_bn):
    with pytest.raises(
        ConfigError, match=f"sync_bn='{sync_bn}' makes.*Remove sync_bn"
    ):
        adapt_config(Config(dict(ours, sync_bn=sync_bn)))
    adapt_config(Config(dict(ours, sync_bn=None)))


def test_sync_bn_without_ours():
    cfg = Config(dict(model=dict(norm_cfg=dict(type='BN')), sync_bn='torch'))
    assert adapt_config(cfg).sync_bn == 'torch'


def scaled(enable=True, **optim_wrapper):
    return Config(
        dict(
            auto_scale_lr=dict(enable=enable, base_batch_size=256),
            optim_wrapper=optim_wrapper,
            train_dataloader=dict(batch_size=4),
        )
    )


def test_auto_scale_lr_under_accumulation():
    with pytest.raises(ConfigError) as refusal:
        check_auto_scale_lr(scaled(accumulative_counts=8), world_size=8)
    message = str(refusal.value)
    assert 'accumulative_counts=8' in message
    assert '32/256 = 0.125' in message  # what MMEngine would do
    assert '32 x 8 = 256 images, which calls for 1.' in message


@pytest.mark.parametrize(
    'cfg',
    [
        scaled(),
        scaled(accumulative_counts=1),
        scaled(enable=False, accumulative_counts=8),
        Config(dict(optim_wrapper=dict(accumulative_counts=8))),
    ],
)
def test_auto_scale_lr_elsewhere(cfg):
    check_auto_scale_lr(cfg, world_size=8)


def test_default_hooks_that_are_none_are_left_out():
    hooks = dict(preemption=None, timer=None, same=dict(type='SameRunHook'))
    given = Config(dict(default_hooks=hooks))
    # None takes MMEngine's own hook out only if it gets there.
    expected = dict(timer=None, same=dict(type='SameRunHook'))
    adapted = adapt_config(given).default_hooks
    assert {name: adapted[name] for name in expected} == expected
    assert 'preemption' not in adapted
    assert given.default_hooks == hooks


def test_checkpoint_hooks_are_added_unless_said_otherwise():
    hooks = adapt_config(Config({})).default_hooks
    assert hooks == dict(
        readable_checkpoint=dict(type='ReadableCheckpointHook'),
        resume_report=dict(type='ResumeReportHook'),
    )
    without = Config(dict(default_hooks=dict.fromkeys(hooks)))
    assert adapt_config(without).default_hooks == {}


class OwnHook:
    pass


@pytest.mark.parametrize('name', ['SyncBNGroupHook', 'OwnHook'])
@pytest.mark.parametrize('place', ['default_hooks', 'custom_hooks'])
def test_find_hook(name, place):
    """By name or class, to be changed in its place."""
    hooks = [dict(type='SyncBNGroupHook'), dict(type=OwnHook)]
    if place == 'default_hooks':
        hooks = dict(timer=None, first=hooks[0], second=hooks[1])
    cfg = Config({place: hooks})
    find_hook(cfg, name)['a'] = 1
    assert find_hook(cfg, name).a == 1
    assert find_hook(cfg, 'Other') is None
    assert find_hook(Config({}), name) is None


def test_a_config_comes_back_as_it_was():
    cfg = Config.fromfile(TINY_CONFIG)
    assert read_config(cfg.pretty_text) == cfg.to_dict()


def test_what_is_no_data_is_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read = read_config(
        'import os\n'
        "os.mkdir('a')\n"
        "a = os.mkdir('b')\n"
        "b = dict(c=[1, -2.5, ('d', open('e', 'w'))], **f)\n"
        "g = dict(h=[1, -2.5, ('d', open('e', 'w'))])\n"
        "i = {'j': dict(k=None), 2: {3}}\n"
        'l: int = 1\nm.n = 2\n'
    )
    assert read == dict(
        a="os.mkdir('b')",
        b="dict(c=[1, -2.5, ('d', open('e', 'w'))], **f)",
        g=dict(h=[1, -2.5, ('d', "open('e', 'w')")]),
        i={'j': dict(k=None), 2: {3}},
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'text',
    ['a = <function f at 0x1>', 'a = "\0"', 'a = ' + '(' * 10_000, '\\'],
)
def test_no_config(text):
    assert read_config(text) is None
