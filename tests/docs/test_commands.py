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

from tests.docs.markdown import PAGES, SHELLS, Command, blocks, commands
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
PACKAGING = 'nightly/packaging/test_distributions.py'
ELSEWHERE = {
    # The set-up behind these three is tested step by step, and as a whole by
    # CI's `make test` on a clean checkout.
    r'source \.venv/bin/activate': (
        'tools/test_setup_install.py::test_second_run_does_nothing'
    ),
    r'make (demo|setup|test)': 'tools/test_demo.py::test_what_make_runs',
    r'make setup TORCH=\S+': (
        'tools/test_setup_install.py::'
        'test_chosen_torch_holds_until_another_is_chosen'
    ),
    r'python -m build': f'{PACKAGING}::test_sdist_holds_the_project',
    r'pip install (\.|dist/\S+)': (
        f'{PACKAGING}::test_installed_wheel_is_the_one_that_runs'
    ),
    r'pip install -e \.': (
        f'{PACKAGING}::test_editable_installation_shows_a_config_as_it_is_now'
    ),
    r'python tools/setup/check_mmcv\.py': (
        'tools/test_setup_mmcv.py::test_installed_mmcv_works'
    ),
    r'python -c "import mmdet_megdet; .*"': (
        f'{PACKAGING}::test_installed_wheel_is_the_one_that_runs'
    ),
    r'mim=\$\(python -c .*\)/\.mim': (
        f'{PACKAGING}::test_installed_wheel_trains_one_iteration'
    ),
    r'(python )?\$mim/tools/\S+( \S+)+': (
        f'{PACKAGING}::test_installed_wheel_trains_one_iteration'
    ),
    r'pip install --no-deps -r requirements/mim\.txt': (
        f'{PACKAGING}::test_mim'
    ),
    r'(PYTHONPATH=\S+ )?mim (train|test|search) mmdet_megdet .*': (
        f'{PACKAGING}::test_mim'
    ),
    r'python -m mmdet_megdet\.demo_data [\w/]+': (
        'test_demo_data.py::test_module_runs_without_warnings'
    ),
    r'(COCO_ROOT=\S+ )?tools/dist_train\.sh \S+256bs\.py 8( --resume)?': (
        'nightly/test_recipe.py::test_recipe_on_eight_ranks'
    ),
    r'NNODES=.* tools/dist_train\.sh \S+ 8': (
        'tools/test_launchers.py::test_several_nodes_command'
    ),
    r'NNODES=1:2 .* tools/dist_train\.sh \S+ 8 --resume': (
        'tools/test_launchers.py::test_machines_that_come_and_go'
    ),
    r'GPUS=.* tools/slurm_(train|test)\.sh( \S+){4}( --resume)?': (
        'tools/test_launchers.py::test_slurm_command'
    ),
    r'(BCCD_ROOT=\S+ )?tools/dist_train\.sh configs/megdet/\w+\.py 2': (
        'tools/test_launchers.py::test_every_launcher_trains_alike'
    ),
    r'tools/dist_train\.sh my_config\.py 8': (
        'distributed/test_existing_configs.py::test_on_two_ranks'
    ),
    r'tools/dist_test\.sh (\S+) (\S+) [28]': (
        'nightly/test_recipe.py::test_recipe_on_eight_ranks'
    ),
    r'python tools/train\.py (CONFIG|configs/\S+)': (
        'docs/test_walkthrough.py::test_own_images_are_trained_on'
    ),
    r'python tools/test\.py CONFIG CHECKPOINT( --out \S+)?': (
        'docs/test_walkthrough.py::test_own_images_are_trained_on'
    ),
    r'python tools/test\.py CONFIG CHECKPOINT --show-dir \S+': (
        'docs/test_walkthrough.py::test_detections_are_drawn'
    ),
    r'python \$mim_tools/analysis_tools/eval_metric\.py .*': (
        'docs/test_walkthrough.py::test_eval_metric_repeats_what_test_said'
    ),
    r'python \$mim_tools/analysis_tools/confusion_matrix\.py .*': (
        'docs/test_walkthrough.py::test_confusion_matrix_draws'
    ),
    r'python \$mim_tools/analysis_tools/analyze_results\.py .*': (
        'docs/test_walkthrough.py::test_analyze_results_sorts_images'
    ),
    r'python tools/analysis/plot_log\.py \S+': (
        'tools/test_plot_log.py::test_command_writes_a_figure'
    ),
    r'python tools/analysis/plot_bn_stats\.py \S+': (
        'tools/test_plot_bn_stats.py::test_hook_writes_what_is_read'
    ),
    r'python tools/analysis/noise_scale\.py WORK_DIR': (
        'tools/test_noise_scale.py::test_the_advice_is_that_of_the_formulas'
    ),
    r'python tools/analysis/plot_schedule\.py CONFIG --gpus 8': (
        'tools/test_plot_schedule.py::test_every_update_of_the_recipe'
    ),
    r'python tools/benchmark/bench_sync_bn\.py --out \S+': (
        'tools/test_bench_sync_bn.py::test_every_layer_has_a_row'
    ),
    r'python tools/benchmark/bn_traffic\.py': (
        'tools/test_bn_traffic.py'
        '::test_passes_and_launches_are_those_of_the_docs'
    ),
    r'python -m pytest tests/sync_bn/kernels/test_interpreted\.py': (
        'sync_bn/kernels/test_interpreted.py::test_interpreted'
    ),
    r'python tools/benchmark/bench_train_step\.py --out \S+': (
        'tools/test_bench_sync_bn.py::test_training_step'
    ),
    r'python tools/benchmark/bench_monitor\.py --out \S+': (
        'tools/test_bench_monitor.py::test_bench_monitor'
    ),
    r'python tools/doctor\.py( \S+)*': (
        'tools/test_doctor.py::test_a_healthy_machine'
    ),
    r'tools/dist_doctor\.sh [28]( \S+)?': (
        'distributed/test_dist_doctor.py::test_healthy_ranks'
    ),
    r'torchrun --standalone --nproc-per-node 2 loop\.py': (
        'docs/test_own_config.py::test_the_loop_without_mmengine'
    ),
}

COMMANDS = [
    command
    for page in PAGES
    for block in blocks(page)
    if block.language in SHELLS
    for command in commands(block)
]


def is_one_of(patterns: list[str], command: Command) -> bool:
    return any(re.fullmatch(pattern, command.text) for pattern in patterns)


def covering(command: Command) -> list[str]:
    return [
        test
        for pattern, test in ELSEWHERE.items()
        if re.fullmatch(pattern, command.text)
    ]


@pytest.mark.parametrize('command', COMMANDS, ids=lambda c: c.place)
def test_every_command_is_accounted_for(command):
    assert (
        NEEDS.search(command.mark)
        or is_one_of([*CHEAP, *ONLINE], command)
        or covering(command)
    ), (
        f'{command.place}: no test runs `{command.text}`. Add it to '
        'tests/docs/test_commands.py, or say in the page what it needs, as '
        '<!-- needs GPUs --> above the block or # needs GPUs behind it.'
    )


@pytest.mark.parametrize('test', sorted(set(ELSEWHERE.values())))
def test_a_test_that_is_named_exists(test):
    file, _, name = test.partition('::')
    assert f'def {name}(' in (ROOT / 'tests' / file).read_text()


@pytest.mark.parametrize('pattern', [*CHEAP, *ONLINE, *ELSEWHERE])
def test_no_pattern_is_left_over(pattern):
    assert any(re.fullmatch(pattern, c.text) for c in COMMANDS), (
        f'no page has a command like {pattern}: remove the pattern'
    )


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
