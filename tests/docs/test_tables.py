# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Tables of the documentation are what configs and code do."""

from __future__ import annotations

import re

import pytest
import torch
from mmengine.config import Config

from mmdet_megdet.recipe import BatchPlan, plan_rows
from mmdet_megdet.runtime import find_hook
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.tools.command import ROOT
from tools import train

DOCS = ROOT / 'docs'
HARDWARE = (DOCS / 'hardware.md').read_text()


def rows(page: str, pattern: str) -> list[list[str]]:
    """Return the cells of a page's rows that begin with a pattern."""
    found = re.findall(rf'^\| (?:{pattern}).*', page, re.M)
    return [[cell.strip() for cell in row[1:-1].split('|')] for row in found]


SET_UPS = rows(HARDWARE, r'\d')
CONVENTIONS = rows(
    (DOCS / 'conventions.md').read_text(), 'Keras|MXNet operator'
)


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
    usages, source = '', ''
    for script in (ROOT / 'tools').glob('*.sh'):
        source += script.read_text()
        if script.name in ('dist_train.sh', 'slurm_train.sh'):
            usages += script.read_text()
    told = {name.strip('`') for name, *_ in rows(HARDWARE, '`[A-Z_]+`')}
    # torchrun reads its own.
    told = {name for name in told if not name.startswith('PET_')}
    assert told == set(re.findall(r'^  ([A-Z_]+)\s', usages, re.M))
    told.remove('MASTER_PORT')  # MMEngine reads it
    assert [x for x in told if not re.search(rf'\${{?{x}\b', source)] == []


@pytest.mark.parametrize('row', CONVENTIONS, ids=lambda row: row[0])
def test_a_translated_layer_keeps_the_same_statistics(row):
    """`new = m * old + (1 - m) * batch`, as TensorFlow and MXNet write it."""
    variances = [row[2].split()[0] for row in CONVENTIONS]
    assert variances == ['unbiased', 'biased', 'biased']
    told = re.fullmatch(r'momentum (.*), eps(?:ilon)? (.*)', row[1])
    ours = re.fullmatch(r'`momentum=(.*), eps=(.*)`', row[3])
    theirs, eps = map(float, told.groups())
    momentum, our_eps = map(float, ours.groups())
    assert our_eps == eps == 1e-3
    unbiased = row[2] == 'unbiased'
    norm = MegDetSyncBN(3, eps, momentum).double()
    mean, var = torch.zeros(3).double(), torch.ones(3).double()
    generator = torch.Generator().manual_seed(0)
    for x in 3 + 2 * torch.randn(40, 8, 3, generator=generator).double():
        normalised = (x - x.mean(0)) / (x.var(0, unbiased=False) + eps).sqrt()
        # A few roundings of float64.
        torch.testing.assert_close(norm(x), normalised, rtol=0, atol=1e-12)
        mean = theirs * mean + (1 - theirs) * x.mean(0)
        var = theirs * var + (1 - theirs) * x.var(0, unbiased=unbiased)
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-12, atol=0)
    # What the variance's start at 1 has left.
    start = theirs**40
    # Of n = 8 values the biased one is (n - 1) / n of the unbiased.
    factor = 1 if unbiased else 7 / 8
    torch.testing.assert_close(
        (norm.running_var - start) * factor, var - start, rtol=1e-10, atol=0
    )


def test_settings_of_the_recipe_are_those_of_the_config():
    """What a setting does is in tests/configs."""
    cfg = Config.fromfile(ROOT / 'configs/megdet/r50_fpn_256bs.py')
    hooks, optimizer = cfg.default_hooks, cfg.optim_wrapper.optimizer
    warmup, steps = cfg.param_scheduler
    first, second = steps.milestones
    epochs = cfg.train_cfg.max_epochs
    assert (steps.gamma, optimizer.weight_decay) == (0.1, 1e-4)
    told = f"""
total batch | {hooks.total_batch.total_batch_size} images
BN statistics | {cfg.model.neck.norm_cfg.bn_size} images
learning rate | {optimizer.lr}
warm-up | linear, {warmup.start_factor} to 1, {warmup.end} updates
schedule | {epochs} epochs, a tenth after {first} and {second}
schedule | .* | {458 * epochs:,} updates in all
optimizer | {optimizer.type}, momentum {optimizer.momentum}, weight decay 1e-4
gradient clip | norm {cfg.optim_wrapper.clip_grad.max_norm}
timeout | {cfg.env_cfg.dist_cfg.timeout} s
iteration | one update, by `{cfg.train_cfg.type}`
epoch | `{cfg.train_dataloader.batch_sampler.type}`
"""
    page = (DOCS / 'recipe.md').read_text()
    for row in told.strip().splitlines():
        pattern = row.replace('|', r'\|')
        assert re.search(rf'^\| {pattern} \|', page, re.M), row
