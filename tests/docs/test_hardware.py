# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The table of set-ups in `docs/hardware.md`, line by line."""

from __future__ import annotations

import re

import pytest
from mmengine.config import Config

from mmdet_megdet.recipe import BatchPlan, plan_rows
from mmdet_megdet.runtime import find_hook
from tests.tools.command import ROOT
from tools import train

COCO = 117_266
PAGE = ROOT / 'docs' / 'hardware.md'
ROWS = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in PAGE.read_text().splitlines()
    if re.match(r'\| \d', line)
]


@pytest.mark.parametrize('row', ROWS, ids=lambda row: f'{row[0]}x{row[1]}')
def test_a_line_is_what_the_plan_says(row):
    assert len(ROWS) == 11
    gpus, images, bn_size = map(int, row[:3])
    options, accumulation, groups = row[3:]
    plan = BatchPlan(gpus, images, 256, bn_size)
    rows = plan_rows(plan, COCO)
    assert int(accumulation) == plan.accumulation
    assert groups == rows['BN groups']
    assert rows['epoch'] == '458 updates, 18 images over'
    # The options make this of the config's 4 images and 32 in BatchNorm.
    args = train.parse_args(['CONFIG', *options.strip('`').split()])
    cfg = Config(dict(train_dataloader=dict(batch_size=4)))
    train.apply_options(cfg, args)
    assert cfg.train_dataloader.batch_size == images
    hook = find_hook(cfg, 'SyncBNGroupHook') or {}
    assert hook.get('bn_size', 32) == bn_size


@pytest.mark.parametrize(
    ('script', 'sources'),
    [
        ('dist_train.sh', ('dist_run.sh', 'interpreter.sh')),
        ('slurm_train.sh', ('slurm_run.sh',)),
    ],
)
def test_every_variable_of_a_launcher_is_in_its_table(script, sources):
    """Those that the script's own usage names, and no others."""
    tools = ROOT / 'tools'
    usage = set(
        re.findall(r'^  ([A-Z_]+)\s', (tools / script).read_text(), re.M)
    )
    slurm = script.startswith('slurm')
    headings = ['Slurm'] if slurm else ['torchrun', 'come and go']
    text = ''.join(
        part
        for part in re.split(r'^## ', PAGE.read_text(), flags=re.M)
        if any(heading in part.split('\n')[0] for heading in headings)
    )
    described = set(re.findall(r'^\| `([A-Z_]+)` ', text, re.M))
    # torchrun's own are read by torchrun.
    described = {name for name in described if not name.startswith('PET_')}
    assert described == usage - ({'PYTHON'} if slurm else set())
    read = ''.join((tools / name).read_text() for name in sources)
    for name in described - {'MASTER_PORT'}:
        assert f'${{{name}' in read or f'${name}' in read, name
