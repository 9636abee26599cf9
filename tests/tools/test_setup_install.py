# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The set-up: what it does again, which torch and which Python it takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tools.command import ROOT

ALL = ['venv', 'packages', 'torch', 'mmcv', 'project']


@pytest.fixture
def setup(monkeypatch, tmp_path):
    """The module, on an empty tree in which each step is only noted."""
    monkeypatch.syspath_prepend(ROOT / 'tools' / 'setup')
    import install as module

    for name, value in dict(
        ROOT=tmp_path,
        VENV=tmp_path / '.venv',
        STAMPS=tmp_path / '.venv' / '.setup',
        PYTHON=tmp_path / '.venv/bin/python',
        REQUIREMENTS=tmp_path / 'requirements',
        really_run=module.run,
        commands={},
    ).items():
        monkeypatch.setattr(module, name, value, raising=False)
    for name in module.INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def run(step: str, *command: Path | str) -> None:
        module.commands[step] = [str(word) for word in command]
        if step == 'venv':
            module.PYTHON.parent.mkdir()
            module.PYTHON.touch()

    monkeypatch.setattr(module, 'run', run)
    monkeypatch.setattr(module, 'gpu_visible', lambda: False)
    monkeypatch.delenv('TORCH', raising=False)
    return module


def steps(setup) -> list[str]:
    """Run the set-up; return the steps that were taken."""
    setup.commands.clear()
    setup.main()
    return list(setup.commands)


def test_second_run_does_nothing(setup):
    assert steps(setup) == ALL
    assert steps(setup) == []


def test_every_changed_file_sets_up_again(setup):
    setup.main()
    for name in setup.INPUTS:
        (setup.ROOT / name).write_text('another')
        assert steps(setup) == ALL[1:], name


def test_interrupted_set_up_is_undone_whatever_comes_then(setup, monkeypatch):
    setup.main()
    lock = setup.REQUIREMENTS / 'lock.txt'
    before = lock.read_text()
    lock.write_text('another')
    with monkeypatch.context() as patch:
        patch.setattr(setup, 'run', lambda *_: sys.exit('full disk'))
        with pytest.raises(SystemExit):
            setup.main()
    # Back to the old lock, yet half of the new one may be installed.
    lock.write_text(before)
    assert steps(setup) == ALL[1:]


def test_moved_or_dangling_venv_is_made_again(setup, monkeypatch):
    setup.main()
    setup.PYTHON.unlink()
    assert steps(setup) == ALL
    moved = setup.VENV.rename(setup.VENV.with_name('elsewhere'))
    monkeypatch.setattr(setup, 'VENV', moved)
    monkeypatch.setattr(setup, 'STAMPS', moved / '.setup')
    monkeypatch.setattr(setup, 'PYTHON', moved / 'bin' / 'python')
    assert steps(setup) == ALL


def test_set_up_beside_a_gpu_serves_without_one_too(setup, monkeypatch):
    setup.main()
    monkeypatch.setattr(setup, 'gpu_visible', lambda: True)
    assert steps(setup) == ALL[1:]
    monkeypatch.setattr(setup, 'gpu_visible', lambda: False)
    assert steps(setup) == []


def test_chosen_torch_holds_until_another_is_chosen(setup, monkeypatch):
    setup.main()
    assert setup.commands['torch'][-1].endswith('requirements/torch.txt')
    monkeypatch.setenv('TORCH', '2.14.1')
    assert steps(setup) == ALL[1:]
    assert 'torch==2.14.1' in setup.commands['torch']
    monkeypatch.delenv('TORCH')
    assert steps(setup) == []
    # The pinned one, with what is pinned beside it.
    pinned = (setup.REQUIREMENTS / 'torch.txt').read_text().split()[-1]
    monkeypatch.setenv('TORCH', pinned.removeprefix('torch=='))
    assert steps(setup) == ALL[1:]
    assert setup.commands['torch'][-1].endswith('requirements/torch.txt')


def test_torch_that_could_not_be_installed_is_not_kept(setup, monkeypatch):
    setup.main()
    with monkeypatch.context() as patch:
        patch.setenv('TORCH', '99')
        patch.setattr(setup, 'run', lambda *_: sys.exit('no such version'))
        with pytest.raises(SystemExit):
            setup.main()
    setup.main()
    assert 'torch==99' not in setup.commands['torch']


def test_foreign_venv_is_left_alone(setup):
    setup.VENV.mkdir()
    with pytest.raises(SystemExit, match='not made by this set-up'):
        setup.main()
    assert setup.VENV.is_dir()


def test_failed_command_names_step_and_remedy(setup):
    with pytest.raises(SystemExit, match=r'"any" failed \(exit status 7 of'):
        setup.really_run('any', sys.executable, '-c', 'raise SystemExit(7)')


def test_commands_run_without_the_users_python_path(setup, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(setup.ROOT))
    command = "import os; assert 'PYTHONPATH' not in os.environ"
    setup.really_run('any', sys.executable, '-c', command)


@pytest.mark.parametrize(
    ('device', 'env', 'expected'),
    [
        ('nvidia0', {}, True),
        ('nvidia0', {'CUDA_VISIBLE_DEVICES': '0,1'}, True),
        ('nvidia0', {'CUDA_VISIBLE_DEVICES': ''}, False),
        ('nvidia0', {'CUDA_VISIBLE_DEVICES': '-1'}, False),
        ('nvidiactl', {}, False),
        ('null', {}, False),
        ('null', {'FORCE_CUDA': '1'}, True),
    ],
)
def test_gpu_is_seen_by_its_device_file(
    monkeypatch, tmp_path, device, env, expected
):
    monkeypatch.syspath_prepend(ROOT / 'tools' / 'setup')
    from install import gpu_visible

    (tmp_path / device).touch()
    assert gpu_visible(env, tmp_path) is expected


def find_python(tmp_path: Path, pythons: dict[str, str], **env: str) -> str:
    """Run setup.sh where only these Pythons are; return what it prints.

    Args:
        tmp_path (Path): An empty folder.
        pythons (dict): Name and version; an empty version does not run.
        **env: The environment.
    """
    script = tmp_path / 'tree' / 'tools' / 'setup' / 'setup.sh'
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / 'tools' / 'setup' / 'setup.sh', script)
    programs = tmp_path / 'bin'
    programs.mkdir()
    for name in ('bash', 'dirname', 'flock'):
        (programs / name).symlink_to(shutil.which(name))
    for name, version in pythons.items():
        # Takes itself for that version, and tells what it was given to run.
        fits = int(version[:4] in ('3.10', '3.11', '3.12'))
        (programs / name).write_text(
            '#!/bin/sh\ncase "$1" in\n'
            f'-V) echo Python {version} ;;\n-c) exit {1 - fits} ;;\n'
            '*) echo "$0 runs $1" ;;\nesac\n'
            if version
            else '#!/bin/sh\nexit 127\n'
        )
        (programs / name).chmod(0o755)
    return subprocess.run(
        [programs / 'bash', script],
        env={'PATH': str(programs), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout


def test_fitting_python_is_found_behind_one_that_does_not_run(tmp_path):
    pythons = {'python3.11': '', 'python3.12': '3.12.1', 'python3': '3.13.0'}
    printed = find_python(tmp_path, pythons)
    assert 'python3.12 runs' in printed
    assert printed.rstrip().endswith('tools/setup/install.py')


def test_versions_that_fit_are_those_of_the_metadata():
    script = (ROOT / 'tools' / 'setup' / 'setup.sh').read_text()
    assert '(3, 10) <= sys.version_info[:2] <= (3, 12)' in script
    metadata = (ROOT / 'pyproject.toml').read_text()
    assert "requires-python = '>=3.10,<3.13'" in metadata


@pytest.mark.parametrize(
    ('named', 'said'),
    [
        (None, 'python3: Python 3.13.0'),
        ('mine', 'mine: Python 3.9.18'),
        ('/nowhere/python3', '/nowhere/python3: does not run'),
    ],
)
def test_no_fitting_python_names_those_tried_and_the_remedy(
    tmp_path, named, said
):
    pythons = {'python3': '3.13.0', 'mine': '3.9.18'}
    if named:
        # Not passed over for another one.
        pythons['python3.11'] = '3.11.7'
    env = {'PYTHON': named} if named else {}
    printed = find_python(tmp_path, pythons, **env)
    assert said in printed
    assert 'make setup PYTHON=' in printed
    assert 'runs' not in printed.replace('does not run', '')


def test_lock_names_one_exact_version_for_each_python():
    names: dict[str, list[Requirement]] = {}
    for line in (ROOT / 'requirements' / 'lock.txt').open():
        text = line.split('#')[0].strip()
        if text:
            requirement = Requirement(text)
            names.setdefault(requirement.name, []).append(requirement)
    for python in ('3.10', '3.11', '3.12'):
        for name, lines in names.items():
            fitting = [
                r
                for r in lines
                if not r.marker
                or r.marker.evaluate({'python_version': python})
            ]
            assert len(fitting) <= 1, (name, python)
            assert all(str(r.specifier).startswith('==') for r in fitting)
            # Only these exist for one side of Python 3.11 alone.
            assert fitting or name in ('tomli', 'exceptiongroup')
    assert 'opencv-python' not in names
    assert 'opencv-python-headless' in names
