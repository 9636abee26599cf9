# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import sys

from mmengine.config import Config

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import weights
from checks.report import PASS, WARN


def test_weights(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    address = 'http://127.0.0.1:1/net.pth'
    finding = weights.check_weight(address)
    assert finding.level == WARN
    assert 'which has not been asked' in finding.text
    cached = tmp_path / 'torch' / 'hub' / 'checkpoints'
    assert str(cached) in finding.remedy
    cached.mkdir(parents=True)
    file = cached / 'net.pth'
    file.write_bytes(b'1')
    assert 'downloaded before' in weights.check_weight(address).text
    assert weights.check_weight(str(file)).level == PASS
    file.write_bytes(b'')
    assert weights.check_weight(str(file)).text == f'{file} is empty'
    assert weights.check_weight('s3://bucket/net.pth').level == WARN
    unknown = weights.check_weight('open-mmlab://no_such_model')
    assert "there is no 'no_such_model'" in unknown.text


def test_weights_of_a_config():
    pretrained = dict(type='Pretrained', checkpoint='/no/such.pth')
    cfg = Config(
        dict(
            model=dict(backbone=dict(init_cfg=pretrained), neck=[pretrained]),
            load_from='/nor/this.pth',
        )
    )
    assert [f.text for f in weights.check_weights(cfg)] == [
        'there is no file /no/such.pth',
        'there is no file /nor/this.pth',
    ]
    (finding,) = weights.check_weights(Config(dict(model=dict())))
    assert finding.level == PASS
