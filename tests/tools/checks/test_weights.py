# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import http.server
import sys
import threading
from functools import partial

import pytest
from mmengine.config import Config

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import weights
from checks.report import FAIL, PASS, WARN


@pytest.fixture
def server(tmp_path):
    """The address of a file on a web server."""
    (tmp_path / 'net.pth').write_bytes(b'12345')
    handler = partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path)
    )
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}/net.pth'
        server.shutdown()


def test_weights(tmp_path, server, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    file = tmp_path / 'net.pth'
    assert weights.check_weight(str(file)).level == PASS
    assert weights.check_weight(server).text.endswith('reached (5 bytes)')
    finding = weights.check_weight(server.replace('net', 'none'))
    assert finding.level == FAIL
    assert '404' in finding.text
    assert f'{tmp_path}/torch/hub/checkpoints' in finding.remedy
    closed = weights.check_weight('http://127.0.0.1:1/net.pth')
    assert 'cannot be reached' in closed.text
    cached = tmp_path / 'torch' / 'hub' / 'checkpoints'
    cached.mkdir(parents=True)
    (cached / 'net.pth').write_bytes(b'1')
    again = weights.check_weight('http://127.0.0.1:1/net.pth')
    assert 'downloaded before' in again.text
    assert weights.check_weight(str(tmp_path / 'none')).level == FAIL
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


def test_weights_that_need_torchvision(monkeypatch):
    monkeypatch.setattr(weights.importlib.util, 'find_spec', lambda name: None)
    finding = weights.check_weight('torchvision://resnet50')
    assert finding.level == FAIL
    assert 'needs torchvision, which is not installed' in finding.text
