# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import argparse
import re

import pytest
import torch
from mmengine.config import Config

from mmdet_megdet.errors import CheckpointError, ConfigError
from tests.tools.command import TINY_CONFIG, TOOLS, run
from tools import train


def error_of(output: str) -> float:
    """The metric in the last line that the log gives it."""
    return float(re.findall(r'error: ([\d.]+)  ', output)[-1])


def test_from_another_directory_uninstalled(tmp_path):
    run_here = ['--cfg-options', 'train_cfg.max_epochs=1']
    here = dict(cwd=tmp_path, cold=True)
    first = run(TOOLS / 'train.py', TINY_CONFIG, *run_here, **here)
    assert first.returncode == 0, first.stdout
    work_dir = tmp_path / 'work_dirs' / 'tiny_config'  # mmdet's default
    loaded = torch.load(work_dir / 'epoch_1.pth')  # weights only: torch's
    assert loaded['meta']['epoch'] == 1
    words = [work_dir / 'epoch_1.pth', '--out', 'predictions.pkl']
    second = run(TOOLS / 'test.py', TINY_CONFIG, *words, **here)
    assert second.returncode == 0, second.stdout
    assert error_of(second.stdout) == error_of(first.stdout)
    assert (tmp_path / 'predictions.pkl').exists()


def apply(cfg=None, **options):
    """Applies the training options to a config; returns the config."""
    cfg = Config(dict(optim_wrapper=dict(type='OptimWrapper')) | (cfg or {}))
    none = dict(amp=False, auto_scale_lr=False, resume=None)
    train.apply_options(cfg, argparse.Namespace(**none | options))
    return cfg


def test_amp_and_auto_scale_lr():
    wrapper = dict(type='AmpOptimWrapper', loss_scale='dynamic')
    assert apply(amp=True).optim_wrapper == wrapper
    given = dict(auto_scale_lr=dict(enable=False, base_batch_size=16))
    assert apply(given, auto_scale_lr=True).auto_scale_lr.enable is True
    with pytest.raises(ConfigError, match='base_batch_size=N'):
        apply(auto_scale_lr=True)


def noted(work_dir, name):
    (work_dir / 'last_checkpoint').write_text(name)
    return dict(work_dir=str(work_dir), load_from='pretrained.pth')


def test_resume(tmp_path, capsys):
    given = dict(work_dir=str(tmp_path), load_from='pretrained.pth')
    # Without any checkpoint it starts as without --resume.
    cfg = apply(given, resume='auto')
    assert not cfg.get('resume')
    assert cfg.load_from == 'pretrained.pth'
    assert f'no checkpoint in {tmp_path} yet' in capsys.readouterr().out

    path = tmp_path / 'epoch_2.pth'
    with pytest.raises(CheckpointError, match='no checkpoint'):
        apply(resume=str(path))
    torch.save({}, path)
    # The second one notes the place before the work folder moved.
    for note in (str(path), '/old/place/epoch_2.pth'):
        cfg = apply(noted(tmp_path, note), resume='auto')
        assert (cfg.resume, cfg.load_from) == (True, str(path))
    cfg = apply(resume=str(path))
    assert (cfg.resume, cfg.load_from) == (True, str(path))
    with pytest.raises(CheckpointError, match=r'epoch_9.*--resume PATH'):
        apply(noted(tmp_path, '/old/place/epoch_9.pth'), resume='auto')


def test_bn_size_is_left_to_the_config_or_overridden():
    cfg = Config(dict(default_hooks=dict(timer=dict(type='IterTimerHook'))))
    train.set_bn_size(cfg, 16)
    hook = dict(type='SyncBNGroupHook', bn_size=16)
    assert cfg.default_hooks.sync_bn_group == hook
    train.set_bn_size(cfg, None)
    assert cfg.default_hooks.sync_bn_group == dict(hook, bn_size=None)
    # A hook that stands among custom_hooks is not doubled.
    cfg = Config(dict(custom_hooks=[dict(type='SyncBNGroupHook')]))
    train.set_bn_size(cfg, 8)
    assert cfg.custom_hooks == [dict(hook, bn_size=8)]
    assert 'default_hooks' not in cfg
