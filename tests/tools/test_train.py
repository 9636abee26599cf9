# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import argparse
import re
from collections import Counter

import pytest
import torch
from mmengine.config import Config

from mmdet_megdet.errors import CheckpointError, ConfigError
from tests.tools.command import ROOT, TINY_CONFIG, TOOLS, run
from tools import train

# Trains, then tests and resumes as a user of plain mmengine does: this package
# is not imported.
STOCK = """
import sys
from mmengine.config import Config
from mmengine.runner import Runner

cfg = Config.fromfile(sys.argv[1])
cfg.work_dir = sys.argv[2]
cfg.model.norm_cfg = None
cfg.param_scheduler = None
cfg.train_cfg.max_epochs = 1
Runner.from_cfg(cfg).train()
cfg.load_from = cfg.work_dir + '/epoch_1.pth'
for cfg.experiment_name in ('test', 'resume'):
    cfg.resume = cfg.experiment_name == 'resume'
    runner = Runner.from_cfg(cfg)
    try:
        runner.train() if cfg.resume else runner.test()
        print('stock', cfg.experiment_name, 'works')
    except Exception as error:
        print('stock', cfg.experiment_name, type(error).__name__, error)
assert 'mmdet_megdet' not in sys.modules
"""


def error_of(output: str) -> float:
    """The metric in the last line that the log gives it."""
    return float(re.findall(r'error: ([\d.]+)  ', output)[-1])


@pytest.mark.slow
def test_stock_mmengine_cannot_read_its_own_checkpoint(tmp_path):
    """Both halves: upstream fails, and the same file works here."""
    script, work_dir = tmp_path / 'stock.py', tmp_path / 'run'
    script.write_text(STOCK)
    stock = run(script, TINY_CONFIG, work_dir, cold=True, PYTHONPATH=str(ROOT))
    assert stock.returncode == 0, stock.stdout
    for task in ('test', 'resume'):
        failure = f'stock {task} UnpicklingError Weights only load failed'
        assert failure in stock.stdout, f'upstream has changed: {task}'
    error = error_of(stock.stdout)
    checkpoint = work_dir / 'epoch_1.pth'

    plain = ['--cfg-options', 'model.norm_cfg=None', 'param_scheduler=None']
    options = ['--work-dir', work_dir, *plain]
    tested = run(TOOLS / 'test.py', TINY_CONFIG, checkpoint, *options)
    assert tested.returncode == 0, tested.stdout
    assert error_of(tested.stdout) == error
    more = [*options, 'train_cfg.max_epochs=2']
    resumed = run(TOOLS / 'train.py', TINY_CONFIG, '--resume', *more)
    assert resumed.returncode == 0, resumed.stdout
    assert 'resumed epoch: 1' in resumed.stdout
    assert (work_dir / 'epoch_2.pth').exists()


def test_from_another_directory_uninstalled(tmp_path):
    run_here = ['--cfg-options', 'train_cfg.max_epochs=1']
    here = dict(cwd=tmp_path, cold=True)
    first = run(TOOLS / 'train.py', TINY_CONFIG, *run_here, **here)
    assert first.returncode == 0, first.stdout
    work_dir = tmp_path / 'work_dirs' / 'tiny_config'  # mmdet's default
    loaded = torch.load(work_dir / 'epoch_1.pth')  # weights only: torch's
    assert loaded['meta']['epoch'] == 1
    second = run(
        TOOLS / 'test.py',
        TINY_CONFIG,
        work_dir / 'epoch_1.pth',
        '--out',
        'predictions.pkl',
        **here,
    )
    assert second.returncode == 0, second.stdout
    assert error_of(second.stdout) == error_of(first.stdout)
    assert (tmp_path / 'predictions.pkl').exists()


def test_trust_checkpoint(tmp_path):
    path, options = tmp_path / 'odd.pth', ['--work-dir', tmp_path]
    torch.save(dict(state_dict={}, extra=Counter, also=print), path)
    refused = run(TOOLS / 'test.py', TINY_CONFIG, path, *options)
    assert refused.returncode == 1
    assert f'error: {path} holds builtins.print, which' in refused.stdout
    assert 'Traceback' not in refused.stdout
    options.append('--trust-checkpoint')
    trusted = run(TOOLS / 'test.py', TINY_CONFIG, path, *options)
    assert trusted.returncode == 0, trusted.stdout


@pytest.mark.parametrize(
    ('tool', 'arguments', 'message'),
    [
        ('train.py', ['none.py'], 'error: there is no config file none.py'),
        ('test.py', [TINY_CONFIG, 'a.pth'], 'error: there is no checkpoint a'),
        (
            'train.py',
            [TINY_CONFIG, '--auto-scale-lr', '--work-dir', 'w']
            + ['--cfg-options', 'auto_scale_lr.base_batch_size=16'],
            'ignores accumulative_counts=2',
        ),
    ],
)
def test_mistakes(tmp_path, tool, arguments, message):
    result = run(TOOLS / tool, *arguments, cwd=tmp_path)
    assert result.returncode != 0
    assert message in result.stdout
    assert 'Traceback' not in result.stdout


def apply(cfg=None, **options):
    """Applies the training options to a config; returns the config."""
    cfg = Config(dict(optim_wrapper=dict(type='OptimWrapper')) | (cfg or {}))
    none = dict(amp=False, auto_scale_lr=False, resume=None)
    train.apply_options(cfg, argparse.Namespace(**none | options))
    return cfg


def test_amp():
    assert apply(amp=True).optim_wrapper == dict(
        type='AmpOptimWrapper', loss_scale='dynamic'
    )


def test_auto_scale_lr():
    given = dict(auto_scale_lr=dict(enable=False, base_batch_size=16))
    assert apply(given, auto_scale_lr=True).auto_scale_lr.enable is True
    with pytest.raises(ConfigError, match='base_batch_size=N'):
        apply(auto_scale_lr=True)


def test_resume_from_a_path(tmp_path):
    path = tmp_path / 'a.pth'
    with pytest.raises(CheckpointError, match='no checkpoint'):
        apply(resume=str(path))
    path.touch()
    cfg = apply(resume=str(path))
    assert (cfg.resume, cfg.load_from) == (True, str(path))


def noted(work_dir, name):
    (work_dir / 'last_checkpoint').write_text(name)
    return dict(work_dir=str(work_dir), load_from='pretrained.pth')


def test_resume_from_the_latest(tmp_path):
    path = tmp_path / 'epoch_2.pth'
    torch.save({}, path)
    cfg = apply(noted(tmp_path, str(path)), resume='auto')
    assert (cfg.resume, cfg.load_from) == (True, str(path))
    # The work folder moved: the note still has its old place.
    cfg = apply(noted(tmp_path, '/old/place/epoch_2.pth'), resume='auto')
    assert (cfg.resume, cfg.load_from) == (True, str(path))


def test_resume_without_any_checkpoint_starts_as_without_it(tmp_path, capsys):
    given = dict(work_dir=str(tmp_path), load_from='pretrained.pth')
    cfg = apply(given, resume='auto')
    assert cfg.get('resume', False) is False
    assert cfg.load_from == 'pretrained.pth'
    assert f'no checkpoint in {tmp_path} yet' in capsys.readouterr().out


def test_resume_from_a_checkpoint_that_is_gone(tmp_path):
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


@pytest.mark.slow
def test_bn_size_reaches_the_layers(tmp_path):
    """One process: 32 images cannot be had, those of all ranks can."""
    common = [TINY_CONFIG, '--work-dir', tmp_path, '--cfg-options']
    options = ['model.norm_cfg.bn_size=32', 'train_cfg.max_epochs=1']
    refused = run(TOOLS / 'train.py', *common, *options, '--bn-size', '32')
    assert refused.returncode == 1
    assert 'bn_size=32 cannot be had from 1 rank(s) with 4' in refused.stdout
    trained = run(TOOLS / 'train.py', *common, *options, '--bn-size', 'none')
    assert trained.returncode == 0, trained.stdout
    assert '1 MegDetSyncBN layers take their statistics' in trained.stdout
