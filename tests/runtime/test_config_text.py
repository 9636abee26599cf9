# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
from mmengine.config import Config

from mmdet_megdet.runtime import read_config
from tests.tools.command import TINY_CONFIG


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
