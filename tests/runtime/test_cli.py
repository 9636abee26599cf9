# Copyright (c) mmdet_megdet contributors. All rights reserved.
import argparse
import os
from pathlib import Path

import pytest

from mmdet_megdet.arguments import bn_size, positive, positive_number
from mmdet_megdet.cli import (
    add_common_options,
    load_config,
    require_checkpoint,
)
from mmdet_megdet.errors import CheckpointError, ConfigError


def load(config, *options):
    parser = argparse.ArgumentParser()
    parser.add_argument('config')
    add_common_options(parser)
    return load_config(parser.parse_args([config, *options]))


def test_options(tmp_path, monkeypatch):
    trust = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.setenv(trust, '0')
    config = str(tmp_path / 'name.py')
    Path(config).touch()
    assert load(config, '--launcher', 'slurm').launcher == 'slurm'
    said = ['--cfg-options', 'work_dir=said']
    assert load(config, *said).work_dir == 'said'
    assert load(config, '--work-dir', 'given', *said).work_dir == 'given'
    assert os.environ[trust] == '0'  # until it is asked for
    load(config, '--trust-checkpoint')
    assert os.environ[trust] == '1'

    with pytest.raises(ConfigError, match='no config file none'):
        load('none')
    with pytest.raises(CheckpointError, match='no checkpoint none'):
        require_checkpoint('none')
    for there in (config, 'https://host/a.pth', 'torchvision://resnet50'):
        assert require_checkpoint(there) == there


@pytest.mark.parametrize(('read', 'wrong'), [
    (positive, ['0', '-4', '3.5', '']),
    (positive_number, ['0', 'nan', 'inf', 'a']),
    (bn_size, ['0', 'all']),
])  # fmt: skip
def test_arguments(read, wrong):
    assert read('32') == 32
    for text in wrong:
        with pytest.raises(argparse.ArgumentTypeError, match='positive'):
            read(text)
