# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The steps of the set-up: which run again, and which Python is taken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install(monkeypatch, tmp_path):
    """The module, on an empty tree in which each step only notes its name."""
    monkeypatch.syspath_prepend(ROOT / 'tools' / 'setup')
    import install as module

    monkeypatch.setattr(module, 'VENV', tmp_path / '.venv')
    monkeypatch.setattr(module, 'STAMPS', tmp_path / '.venv' / '.setup')
    monkeypatch.setattr(module, 'ROOT', tmp_path)
    monkeypatch.setattr(module, 'REQUIREMENTS', tmp_path / 'requirements')
    monkeypatch.setattr(module, 'PYTHON', tmp_path / '.venv/bin/python')
    (tmp_path / 'requirements').mkdir()
    (tmp_path / 'mmdet_megdet').mkdir()
    for name in (
        'requirements/torch.txt',
        'requirements/lock.txt',
        'requirements/cuda.txt',
        'requirements/mmcv.txt',
        'setup.py',
        'pyproject.toml',
        'mmdet_megdet/version.py',
    ):
        (tmp_path / name).write_text(name)
    module.ran = []

    def note(step: str) -> None:
        module.ran.append(step)

    def make_venv() -> None:
        note('venv')
        shutil.rmtree(module.VENV, ignore_errors=True)
        module.STAMPS.mkdir(parents=True)
        module.PYTHON.parent.mkdir()
        module.PYTHON.touch()

    monkeypatch.setattr(module, 'make_venv', make_venv)
    for step in ('torch', 'lock', 'mmcv', 'project'):
        monkeypatch.setattr(
            module, f'install_{step}', lambda step=step: note(step)
        )
    monkeypatch.setattr(module, 'gpu_wanted', lambda venv: False)
    return module


def run_again(install) -> list[str]:
    """Run the set-up; returns the steps that did work."""
    install.ran.clear()
    install.main()
    return list(install.ran)


ALL = ['venv', 'torch', 'lock', 'mmcv', 'project']


def test_second_run_does_nothing(install):
    assert run_again(install) == ALL
    assert run_again(install) == []


def test_interrupted_step_is_repeated_and_the_rest_follows(
    install, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(install, 'install_lock', lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            install.main()
    assert run_again(install) == ['lock', 'mmcv', 'project']


def test_step_that_fails_when_repeated_loses_its_stamp(install, monkeypatch):
    install.main()
    lock = install.REQUIREMENTS / 'lock.txt'
    before = lock.read_text()
    lock.write_text('another')
    with monkeypatch.context() as patch:
        patch.setattr(install, 'install_lock', lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            install.main()
    # Back to the old lock, yet half of the new one may be installed.
    lock.write_text(before)
    assert 'lock' in run_again(install)


@pytest.mark.parametrize(
    ('changed', 'expected'),
    [
        ('requirements/lock.txt', ['torch', 'lock']),
        ('requirements/torch.txt', ['torch', 'lock', 'mmcv']),
        ('requirements/mmcv.txt', ['mmcv']),
        ('setup.py', ['project']),
    ],
)
def test_changed_file_repeats_what_depends_on_it(install, changed, expected):
    install.main()
    (install.ROOT / changed).write_text('another')
    assert run_again(install) == expected


def test_moved_or_dangling_venv_is_made_again(install, monkeypatch):
    install.main()
    install.PYTHON.unlink()
    assert run_again(install) == ALL
    moved = install.VENV.with_name('elsewhere')
    install.VENV.rename(moved)
    monkeypatch.setattr(install, 'VENV', moved)
    monkeypatch.setattr(install, 'STAMPS', moved / '.setup')
    monkeypatch.setattr(install, 'PYTHON', moved / 'bin' / 'python')
    assert run_again(install) == ALL


def test_gpu_asks_for_cuda_ops_which_serve_without_gpu_too(
    install, monkeypatch
):
    install.main()
    monkeypatch.setattr(install, 'gpu_wanted', lambda venv: True)
    assert run_again(install) == ['mmcv']
    assert run_again(install) == []
    monkeypatch.setattr(install, 'gpu_wanted', lambda venv: False)
    assert run_again(install) == []


def test_foreign_venv_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / 'tools' / 'setup')
    import install as module

    foreign = tmp_path / '.venv'
    (foreign / 'bin').mkdir(parents=True)
    monkeypatch.setattr(module, 'VENV', foreign)
    monkeypatch.setattr(module, 'STAMPS', foreign / '.setup')
    with pytest.raises(module.SetupError, match='not made by this set-up'):
        module.make_venv()
    assert (foreign / 'bin').is_dir()


def test_failed_command_names_step_and_remedy(install):
    command = (sys.executable, '-c', 'raise SystemExit(7)')
    with pytest.raises(install.SetupError) as raised:
        install.run(*command, step='torch')
    assert '"torch" failed (exit status 7' in str(raised.value)
    assert 'again to continue' in str(raised.value)


def test_commands_run_without_the_users_python_path(install, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(install.ROOT))
    command = "import os; assert 'PYTHONPATH' not in os.environ"
    install.run(sys.executable, '-c', command, step='any')


def fake_python(path: Path, version: str) -> Path:
    """A program that answers as that Python, and tells what it was given."""
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo {version}; '
        'else echo "$0 runs $1"; fi\n'
    )
    path.chmod(0o755)
    return path


def find_python(tmp_path: Path, **env: str) -> subprocess.CompletedProcess:
    """setup.sh of a copy without .venv, with only tmp_path/bin's Pythons."""
    script = tmp_path / 'tree' / 'tools' / 'setup' / 'setup.sh'
    script.parent.mkdir(parents=True)
    script.write_text((ROOT / 'tools/setup/setup.sh').read_text())
    programs = tmp_path / 'bin'
    for name in ('bash', 'dirname'):
        (programs / name).symlink_to(f'/usr/bin/{name}')
    return subprocess.run(
        [programs / 'bash', script],
        env={'PATH': str(programs), **env},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def programs(tmp_path) -> Path:
    (tmp_path / 'bin').mkdir()
    return tmp_path / 'bin'


def test_fitting_python_is_found_behind_one_that_does_not_run(
    programs, tmp_path
):
    broken = programs / 'python3.11'
    broken.write_text('#!/bin/sh\nexit 127\n')
    broken.chmod(0o755)
    fake_python(programs / 'python3.12', '3.12.1')
    fake_python(programs / 'python3', '3.13.0')
    done = find_python(tmp_path)
    assert done.returncode == 0
    assert 'python3.12 runs' in done.stdout
    assert done.stdout.rstrip().endswith('tools/setup/install.py')


def test_no_fitting_python_names_those_found_and_the_remedy(
    programs, tmp_path
):
    fake_python(programs / 'python3', '3.13.0')
    done = find_python(tmp_path)
    assert done.returncode == 1
    assert 'python3 is 3.13.0' in done.stderr
    assert 'make setup PYTHON=' in done.stderr


@pytest.mark.parametrize('version', ['3.9.18', '3.13.0', '2.7.18'])
def test_named_python_of_another_version_is_refused(
    programs, tmp_path, version
):
    fake_python(programs / 'python3.11', '3.11.7')
    named = fake_python(programs / 'mine', version)
    done = find_python(tmp_path, PYTHON=str(named))
    assert done.returncode == 1
    assert f'is Python {version}; 3.10 to 3.12 is needed' in done.stderr


def test_named_python_that_is_not_there_is_refused(programs, tmp_path):
    done = find_python(tmp_path, PYTHON='/nowhere/python3')
    assert done.returncode == 1
    assert 'PYTHON=/nowhere/python3 does not run' in done.stderr


def test_lock_names_one_exact_version_for_each_python():
    from packaging.requirements import Requirement

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
