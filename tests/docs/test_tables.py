# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Tables of the documentation are what configs and code do."""

import ast
import inspect
import re

import pytest
from mmengine.config import Config

from mmdet_megdet.hooks import BNStatsMonitorHook
from mmdet_megdet.monitor import CHECKS, Finding, LayerRecord, Record
from mmdet_megdet.recipe import BatchPlan, plan_rows
from mmdet_megdet.runtime import find_hook
from tests.docs.markdown import table
from tests.tools.command import ROOT
from tools import train

SET_UPS = table('docs/hardware.md', 'GPUs')
MONITOR = 'docs/monitor.md'


@pytest.mark.parametrize('row', SET_UPS, ids=lambda row: f'{row[0]}x{row[1]}')
def test_a_set_up_is_what_the_plan_says(row):
    assert len(SET_UPS) == 11
    gpus, images, bn_size = map(int, row[:3])
    options, accumulation, groups = row[3:]
    plan = BatchPlan(gpus, images, 256, bn_size)
    told = plan_rows(plan, 117_266)
    assert int(accumulation) == plan.accumulation
    assert groups == told['BN groups']
    assert told['epoch'] == '458 updates, 18 images over'
    # The options make this of the config's 4 images and 32 in BatchNorm.
    args = train.parse_args(['CONFIG', *options.strip('`').split()])
    cfg = Config(dict(train_dataloader=dict(batch_size=4)))
    train.apply_options(cfg, args)
    assert cfg.train_dataloader.batch_size == images
    hook = find_hook(cfg, 'SyncBNGroupHook') or {}
    assert hook.get('bn_size', 32) == bn_size


def test_variables_are_those_of_the_launchers():
    """Those that their usages name and their scripts read, and no others."""
    scripts = {
        path.name: path.read_text() for path in (ROOT / 'tools').glob('*.sh')
    }
    usages = scripts['dist_train.sh'] + scripts['slurm_train.sh']
    variables = table('docs/hardware.md', 'variable')
    # torchrun reads its own.
    told = {name.strip('`') for name, *_ in variables if '`PET_' not in name}
    assert told == set(re.findall(r'^  ([A-Z_]+)\s', usages, re.M))
    told.remove('MASTER_PORT')  # MMEngine reads it
    source = ''.join(scripts.values())
    assert [x for x in told if not re.search(rf'\${{?{x}\b', source)] == []


def test_momentum_and_eps_are_translated():
    """The first row is PyTorch's own, and the last translated already.

    Which variance each keeps is as its source says, which is not run.
    """
    first, *others, last = table('docs/conventions.md', 'where')
    assert [row[2].split(',')[0] for row in (first, *others, last)] == (
        ['unbiased'] * 2 + ['biased'] * 4 + ['unbiased']
    )
    for _, theirs, _, ours in others:
        if ours == 'the default':
            ours = 'momentum 0.1, eps 1e-5'
        (momentum, eps), own = (
            [float(n) for n in re.findall(r'0\.\d+|1e-\d', cell)]
            for cell in (theirs, ours)
        )
        assert own == pytest.approx([1 - momentum, eps])


def test_settings_of_the_recipe_are_those_of_the_config():
    """What a setting does is in tests/configs."""
    cfg = Config.fromfile(ROOT / 'configs/megdet/r50_fpn_256bs.py')
    hooks, optimizer = cfg.default_hooks, cfg.optim_wrapper.optimizer
    warmup, steps = cfg.param_scheduler
    first, second = steps.milestones
    epochs = cfg.train_cfg.max_epochs
    assert (steps.gamma, optimizer.weight_decay) == (0.1, 1e-4)
    told = {name: cells for name, *cells in table('docs/recipe.md', 'setting')}
    assert told['schedule'][1] == f'{458 * epochs:,} updates in all'
    expected = {
        'total batch': f'{hooks.total_batch.total_batch_size} images',
        'BN statistics': f'{cfg.model.neck.norm_cfg.bn_size} images',
        'learning rate': f'{optimizer.lr}',
        'warm-up': (
            f'linear, {warmup.start_factor} to 1, {warmup.end} updates'
        ),
        'schedule': f'{epochs} epochs, a tenth after {first} and {second}',
        'optimizer': (
            f'{optimizer.type}, momentum {optimizer.momentum}, '
            'weight decay 1e-4'
        ),
        'gradient clip': f'norm {cfg.optim_wrapper.clip_grad.max_norm}',
        'timeout': f'{cfg.env_cfg.dist_cfg.timeout} s',
        'iteration': f'one update, by `{cfg.train_cfg.type}`',
        'epoch': f'`{cfg.train_dataloader.batch_sampler.type}`',
    }
    assert {name: told[name][0] for name in expected} == expected


def test_the_monitors_findings_options_and_fields():
    told = {
        row[0].split('`')[1]: re.search('error|warning', row[0])[0]
        for row in table(MONITOR, 'finding')
        if row[0]
    }
    assert told == {check.name: check.level for check in CHECKS}
    told = {
        name: ast.literal_eval(default.strip('`'))
        for name, default, _ in table(MONITOR, 'option')
    }
    parameters = inspect.signature(BNStatsMonitorHook).parameters
    assert told == {f'`{n}`': p.default for n, p in parameters.items()}
    for heading, kind in (
        ('field', Record),
        ('field of a layer', LayerRecord),
    ):
        names = ' '.join(row[0] for row in table(MONITOR, heading))
        assert tuple(re.findall('`(.+?)`', names)) == kind.__struct_fields__
    fields = dict(table(MONITOR, 'field'))
    told = re.findall('`(.+?)`', fields['`findings`'])
    assert told == [*Finding.__struct_fields__]
