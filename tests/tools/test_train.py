# Copyright (c) mmdet_megdet contributors. All rights reserved.
import re

import pytest
import torch
from mmengine.config import Config

from mmdet_megdet.errors import CheckpointError, ConfigError
from tests.tools.command import TINY_CONFIG, TOOLS, run
from tools import train


def test_from_another_directory_uninstalled(tmp_path):
    here = dict(cwd=tmp_path, cold=True)
    words = ['--cfg-options', 'train_cfg.max_epochs=1']
    first = run(TOOLS / 'train.py', TINY_CONFIG, *words, **here)
    assert first.returncode == 0, first.stdout
    path = tmp_path / 'work_dirs' / 'tiny_config' / 'epoch_1.pth'  # as mmdet
    assert torch.load(path)['meta']['epoch'] == 1  # weights only: torch's
    words = [path, '--out', 'predictions.pkl']
    second = run(TOOLS / 'test.py', TINY_CONFIG, *words, **here)
    assert second.returncode == 0, second.stdout
    errors = [
        re.findall(r'error: ([\d.]+)  ', done.stdout)[-1]
        for done in (first, second)
    ]
    assert errors[0] == errors[1]
    assert (tmp_path / 'predictions.pkl').exists()


def apply(cfg, *options):
    """Apply the training options to a config; return its content."""
    cfg = Config(dict(optim_wrapper=dict(type='OptimWrapper')) | cfg)
    train.apply_options(cfg, train.parse_args(['config.py', *options]))
    return cfg.to_dict()


def test_amp_and_auto_scale_lr():
    wrapper = dict(type='AmpOptimWrapper', loss_scale='dynamic')
    assert apply({}, '--amp')['optim_wrapper'] == wrapper
    given = dict(auto_scale_lr=dict(enable=False, base_batch_size=16))
    scaled = apply(given, '--auto-scale-lr')['auto_scale_lr']
    assert scaled == dict(enable=True, base_batch_size=16)
    with pytest.raises(ConfigError, match='base_batch_size=N'):
        apply({}, '--auto-scale-lr')


def test_resume(tmp_path, capsys):
    cfg = dict(work_dir=str(tmp_path), load_from='pretrained.pth')
    # Without any checkpoint it starts as without --resume.
    assert apply(cfg, '--resume') == apply(cfg)
    assert f'no checkpoint in {tmp_path} yet' in capsys.readouterr().out

    path = tmp_path / 'epoch_2.pth'
    with pytest.raises(CheckpointError, match='no checkpoint'):
        apply(cfg, '--resume', str(path))
    torch.save({}, path)
    resumed = apply(cfg | dict(resume=True, load_from=str(path)))
    assert apply(cfg, '--resume', str(path)) == resumed
    # Noted before the work folder moved.
    (tmp_path / 'last_checkpoint').write_text('/old/place/epoch_2.pth')
    assert apply(cfg, '--resume') == resumed


def test_bn_size_is_left_to_the_config_or_overridden():
    timer, hook = dict(type='IterTimerHook'), dict(type='SyncBNGroupHook')
    cfg = dict(default_hooks=dict(timer=timer))
    assert apply(cfg)['default_hooks'] == dict(timer=timer)
    for words, size in (('--bn-size=16', 16), ('--bn-size=none', None)):
        ours = dict(hook, bn_size=size)
        hooks = dict(timer=timer, sync_bn_group=ours)
        assert apply(cfg, words)['default_hooks'] == hooks
    # A hook that stands among custom_hooks is not doubled.
    found = apply(dict(custom_hooks=[hook]), '--bn-size=8')
    assert found['custom_hooks'] == [dict(hook, bn_size=8)]
    assert 'default_hooks' not in found
