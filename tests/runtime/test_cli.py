# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import argparse
import os

import pytest

from mmdet_megdet.arguments import bn_size, positive, positive_number
from mmdet_megdet.cli import (
    add_common_options,
    load_config,
    require_checkpoint,
    run_tool,
)
from mmdet_megdet.errors import CheckpointError, ConfigError, DataError


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config file; the environment is put back afterwards."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '0')
    path = tmp_path / 'name.py'
    path.write_text('a = dict(b=1, c=2)\n')
    return str(path)


def load(config, *options):
    parser = argparse.ArgumentParser()
    parser.add_argument('config')
    add_common_options(parser)
    return load_config(parser.parse_args([config, *options]))


def test_options(config):
    cfg = load(config, '--launcher', 'slurm', '--cfg-options', 'a.b=3')
    assert cfg.launcher == 'slurm'
    assert cfg.a == dict(b=3, c=2)


def test_work_dir(config):
    assert load(config).work_dir == 'work_dirs/name'
    said = ['--cfg-options', 'work_dir=said']
    assert load(config, *said).work_dir == 'said'
    assert load(config, '--work-dir', 'given', *said).work_dir == 'given'


def test_trust_is_off_unless_asked_for(config):
    load(config)
    assert os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] == '0'
    load(config, '--trust-checkpoint')
    assert os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] == '1'


def test_missing_files(config, tmp_path):
    with pytest.raises(ConfigError, match='no config file none'):
        load('none')
    with pytest.raises(CheckpointError, match='no checkpoint none'):
        require_checkpoint('none')
    for there in (config, 'https://host/a.pth', 'torchvision://resnet50'):
        assert require_checkpoint(there) == there


@pytest.mark.parametrize('kind', [ConfigError, CheckpointError, DataError])
def test_mistake_is_one_message(capsys, kind):
    def mistaken():
        raise kind('say one of them')

    with pytest.raises(SystemExit) as end:
        run_tool(mistaken)
    assert end.value.code == 1
    assert capsys.readouterr().err == 'error: say one of them\n'


def test_lost_rank_has_a_status_of_its_own():
    def lost():
        raise RuntimeError('[gloo/transport] Connection closed by peer')

    with pytest.raises(SystemExit) as end:
        run_tool(lost)
    assert end.value.code == 69


def test_defect_keeps_its_traceback(capsys):
    def defective():
        raise ZeroDivisionError('nothing of ours')

    with pytest.raises(SystemExit) as end:
        run_tool(defective)
    assert end.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith('Traceback')
    assert printed.endswith('ZeroDivisionError: nothing of ours\n')


@pytest.mark.parametrize(
    ('read', 'text', 'value'),
    [
        (positive, '32', 32),
        (positive_number, '.5', 0.5),
        (bn_size, '32', 32),
        (bn_size, 'None', None),
    ],
)
def test_arguments(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ('read', 'texts', 'message'),
    [
        (positive, ['0', '-4', '3.5', 'none', ''], 'positive whole number'),
        (positive_number, ['0', '-1', 'nan', 'inf', 'a'], 'positive number'),
        (bn_size, ['0', '-4', '3.5', 'all', ''], "whole number or 'none'"),
    ],
)
def test_arguments_that_cannot_be(read, texts, message):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            read(text)
