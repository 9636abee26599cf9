# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
from mmengine.config import Config

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.runtime import (
    adapt_config,
    find_hook,
    read_config,
)
from tests.tools.command import TINY_CONFIG

OURS = 'MegDetDistributedDataParallel'
STOCK = 'MMDistributedDataParallel'


UNUSED = dict(find_unused_parameters=True)


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        (dict(model_wrapper_cfg=None), dict(type=OURS)),
        (UNUSED, dict(UNUSED, type=OURS)),
        (
            dict(model_wrapper_cfg=dict(UNUSED, type=STOCK, a=5), **UNUSED),
            dict(UNUSED, type=OURS, a=5),
        ),
        (
            dict(
                model_wrapper_cfg=dict(type='TheirOwn', a=5),
                find_unused_parameters=False,
            ),
            dict(type='TheirOwn', a=5),
        ),
    ],
)
def test_wrapper(given, expected):
    cfg = Config(given)
    assert adapt_config(cfg).model_wrapper_cfg == expected
    assert cfg.to_dict() == given  # as the user wrote it


@pytest.mark.parametrize(
    ('asked', 'wrapper'),
    [
        (True, dict(find_unused_parameters=False)),
        (False, dict(find_unused_parameters=True)),
        (True, dict(type='TheirOwn')),  # would not hear of it
    ],
)
def test_contradiction(asked, wrapper):
    cfg = dict(find_unused_parameters=asked, model_wrapper_cfg=wrapper)
    with pytest.raises(ConfigError, match=f'={asked} contradicts'):
        adapt_config(Config(cfg))


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
def test_sync_bn_would_undo_ours(ours):
    with pytest.raises(ConfigError, match="sync_bn='torch' makes"):
        adapt_config(Config(dict(ours, sync_bn='torch')))
    adapt_config(Config(dict(ours, sync_bn=None)))
    cfg = Config(dict(model=dict(norm_cfg=dict(type='BN')), sync_bn='torch'))
    assert adapt_config(cfg).sync_bn == 'torch'


@pytest.mark.parametrize(
    ('enable', 'counts'), [(True, 1), (False, 8), (True, 8)]
)
def test_auto_scale_lr_under_accumulation(enable, counts):
    cfg = Config(
        dict(
            auto_scale_lr=dict(enable=enable, base_batch_size=256),
            optim_wrapper=dict(accumulative_counts=counts),
        )
    )
    if not enable or counts == 1:
        adapt_config(cfg)
        return
    with pytest.raises(ConfigError, match='ignores accumulative_counts=8'):
        adapt_config(cfg)


def test_default_hooks():
    """What is None is left out, and what keeps checkpoints readable added."""
    hooks = dict(resume_report=None, timer=None, same=dict(type='SameRunHook'))
    given = Config(dict(default_hooks=hooks))
    assert adapt_config(given).default_hooks == dict(
        # None takes MMEngine's own hook out only if it gets there.
        timer=None,
        same=dict(type='SameRunHook'),
        readable_checkpoint=dict(type='ReadableCheckpointHook'),
    )
    assert given.default_hooks == hooks


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
