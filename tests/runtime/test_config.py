# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest
from mmengine.config import Config

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.faults import SameRunHook
from mmdet_megdet.runtime import adapt_config, find_hook, read_config
from tests.tools.command import TINY_CONFIG

OURS = 'MegDetDistributedDataParallel'
UNUSED = dict(find_unused_parameters=True)
USED = dict(find_unused_parameters=False)
STOCK = dict(UNUSED, type='MMDistributedDataParallel', a=5)
THEIRS = dict(type='TheirOwn', a=5)
# MegDetSyncBN, deep inside.
NORM = dict(neck=[dict(stages=(dict(norm_cfg=dict(type='MegDetSyncBN')),))])
CONVERTED = dict(convert_bn=True)
SCALED = dict(enable=True, base_batch_size=256)
ACCUMULATED = dict(accumulative_counts=8)


@pytest.mark.parametrize(('given', 'expected'), [
    (dict(model_wrapper_cfg=None), dict(type=OURS)),
    (UNUSED, dict(UNUSED, type=OURS)),
    (dict(UNUSED, model_wrapper_cfg=STOCK), dict(STOCK, type=OURS)),
    (dict(USED, model_wrapper_cfg=THEIRS), THEIRS),
    # What looks like the refusals below, and is sound.
    (dict(model=NORM, sync_bn=None), dict(type=OURS)),
    (dict(model=dict(type='BN'), sync_bn='torch'), dict(type=OURS)),
    (dict(auto_scale_lr=SCALED), dict(type=OURS)),
    (dict(optim_wrapper=ACCUMULATED), dict(type=OURS)),
])  # fmt: skip
def test_wrapper(given, expected):
    cfg = Config(given)
    assert adapt_config(cfg).model_wrapper_cfg == expected
    assert cfg.to_dict() == given  # as the user wrote it


@pytest.mark.parametrize(('given', 'message'), [
    (dict(model=NORM, sync_bn='torch'), "sync_bn='torch' makes"),
    (dict(model_wrapper_cfg=CONVERTED, sync_bn='torch'), "='torch' makes"),
    (dict(auto_scale_lr=SCALED, optim_wrapper=ACCUMULATED),
     'ignores accumulative_counts=8'),
])  # fmt: skip
def test_settings_that_undo_one_another(given, message):
    with pytest.raises(ConfigError, match=message):
        adapt_config(Config(given))


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


def test_find_hook():
    """By name or class, to be changed in its place."""
    hooks = dict(timer=None, by_class=dict(type=SameRunHook))
    cfg = Config(dict(default_hooks=hooks, custom_hooks=[dict(type='Named')]))
    for name in ('Named', 'SameRunHook'):
        find_hook(cfg, name)['found'] = True
    assert cfg.default_hooks.by_class.found
    assert cfg.custom_hooks[0].found
    assert find_hook(cfg, 'Other') is find_hook(Config(), 'Named') is None


def test_a_config_is_read_as_data(tmp_path, monkeypatch):
    cfg = Config.fromfile(TINY_CONFIG)
    assert read_config(cfg.pretty_text) == cfg.to_dict()
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
    'text', ['a = <function f at 0x1>', 'a = "\0"', 'a = ' + '(' * 10_000]
)
def test_no_config(text):
    assert read_config(text) is None
