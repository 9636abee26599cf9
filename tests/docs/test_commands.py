# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Every command of the documentation is run, or says what it needs.

A command is

- run here, if it takes no time (``CHEAP``), in a folder that looks like the
  repository;
- or run by another test, in that form or with smaller numbers (``ELSEWHERE``);
- or fetches from a package registry (``ONLINE``), which no test does;
- or marked in the page as one that needs what no test has (``NEEDS``): in a
  comment above the block (``<!-- needs GPUs -->``), or in the shell's comment
  above or behind the command.

To add one: put it under a pattern here, or mark it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, Command, blocks, commands
from tests.tools.command import ROOT, run

# What a mark may name.
NEEDS = re.compile(r'needs (GPUs?|COCO|BCCD|Slurm|the network)\b')

# Patterns match whole commands.
CHEAP = [
    r'python tools/plan\.py( [-\w.]+)+',
    r'mim_tools=\$\(python -c .*\)/\.mim/tools',
]
# `docs/installation.md` says what of this was done by hand.
ONLINE = [
    r"pip install 'torch\S+' 'setuptools\S+' wheel ninja psutil",
    r"pip install (--no-build-isolation )?'?(mmcv|onedl-\w+)==\S+",
    r"pip install '\.\[openmmlab\]'",
    r'pip install build',
]
# By the file of tests.
ELSEWHERE = {
    # The set-up behind the first two is tested step by step, and as a whole
    # by CI's `make test` on a clean checkout.
    'tools/test_setup_install.py': [
        r'source \.venv/bin/activate',
        r'make setup TORCH=\S+',
    ],
    'tools/test_demo.py': [r'make (demo|setup|test)'],
    'nightly/packaging/test_distributions.py': [
        r'python -m build',
        r'pip install (\.|dist/\S+)',
        r'pip install -e \.',
        r'python -c "import mmdet_megdet; .*"',
        r'mim=\$\(python -c .*\)/\.mim',
        r'(python )?\$mim/tools/\S+( \S+)+',
        r'pip install --no-deps -r requirements/mim\.txt',
        r'(PYTHONPATH=\S+ )?mim (train|test|search) mmdet_megdet .*',
    ],
    'tools/test_setup_mmcv.py': [r'python tools/setup/check_mmcv\.py'],
    'test_demo_data.py': [r'python -m mmdet_megdet\.demo_data [\w/]+'],
    'nightly/test_recipe.py': [
        r'(COCO_ROOT=\S+ )?tools/dist_train\.sh \S+256bs\.py 8( --resume)?',
        r'tools/dist_test\.sh (\S+) (\S+) [28]',
    ],
    'tools/test_launchers.py': [
        r'NNODES=.* tools/dist_train\.sh \S+ 8( --resume)?',
        r'GPUS=.* tools/slurm_(train|test)\.sh( \S+){4}( --resume)?',
        r'(BCCD_ROOT=\S+ )?tools/dist_train\.sh configs/megdet/\w+\.py 2',
    ],
    'distributed/test_existing_configs.py': [
        r'tools/dist_train\.sh my_config\.py 8'
    ],
    'docs/test_walkthrough.py': [
        r'python tools/train\.py (CONFIG|configs/\S+)',
        r'python tools/test\.py CONFIG CHECKPOINT( --(out|show-dir) \S+)?',
        r'python \$mim_tools/analysis_tools/\w+\.py .*',
    ],
    'docs/test_own_config.py': [
        r'torchrun --standalone --nproc-per-node 2 loop\.py'
    ],
    'tools/test_plot_log.py': [r'python tools/analysis/plot_log\.py \S+'],
    'tools/test_plot_bn_stats.py': [
        r'python tools/analysis/plot_bn_stats\.py \S+'
    ],
    'tools/test_noise_scale.py': [
        r'python tools/analysis/noise_scale\.py WORK_DIR'
    ],
    'tools/test_plot_schedule.py': [
        r'python tools/analysis/plot_schedule\.py CONFIG --gpus 8'
    ],
    'tools/test_bench_sync_bn.py': [
        r'python tools/benchmark/bench_sync_bn\.py',
        r'python tools/benchmark/bench_train_step\.py --compare \w+',
        r'python tools/benchmark/bn_traffic\.py',
    ],
    'sync_bn/kernels/test_interpreted.py': [
        r'python -m pytest tests/sync_bn/kernels/test_interpreted\.py'
    ],
    'tools/test_doctor.py': [r'python tools/doctor\.py( \S+)*'],
    'distributed/test_dist_doctor.py': [r'tools/dist_doctor\.sh [28]( \S+)?'],
}
PATTERNS = [*CHEAP, *ONLINE, *(p for each in ELSEWHERE.values() for p in each)]

COMMANDS = [
    command
    for page in PAGES
    for block in blocks(page)
    if block.language in ('shell', 'bash', 'console', 'sh')
    for command in commands(block)
]


def is_one_of(patterns: list[str], command: Command) -> bool:
    return any(re.fullmatch(pattern, command.text) for pattern in patterns)


@pytest.mark.parametrize('command', COMMANDS, ids=lambda c: c.text)
def test_every_command_is_accounted_for(command):
    assert NEEDS.search(command.mark) or is_one_of(PATTERNS, command), (
        f'{command.place}: no test runs `{command.text}`. Add it to '
        'tests/docs/test_commands.py, or say in the page what it needs, as '
        '<!-- needs GPUs --> above the block or # needs GPUs behind it.'
    )


def test_nothing_is_left_over():
    assert [f for f in ELSEWHERE if not (ROOT / 'tests' / f).exists()] == []
    texts = [command.text for command in COMMANDS]
    unused = [
        p for p in PATTERNS if not any(map(re.compile(p).fullmatch, texts))
    ]
    assert unused == []


@pytest.fixture(scope='module')
def repository(tmp_path_factory) -> Path:
    """What commands are run in: links to the repository, and room beside."""
    folder = tmp_path_factory.mktemp('repository')
    for name in ('Makefile', 'configs', 'mmdet_megdet', 'tools'):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize(
    'text', sorted({c.text for c in COMMANDS if is_one_of(CHEAP, c)})
)
def test_cheap_commands_run(text, repository):
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    done = run(
        'bash', '-euo', 'pipefail', '-c', text, cwd=repository, PATH=path
    )
    assert done.returncode == 0, done.stdout
