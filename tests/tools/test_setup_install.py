# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The set-up: what it does again, which torch and which Python it takes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tools.command import ROOT, run

ALL = ['venv', 'packages', 'torch', 'mmcv', 'project']


@pytest.fixture
def setup(monkeypatch, tmp_path):
    """The module, on an empty tree in which each step is only noted."""
    monkeypatch.syspath_prepend(ROOT / 'tools' / 'setup')
    import install as module

    venv = tmp_path / '.venv'
    for name, value in dict(
        ROOT=tmp_path,
        VENV=venv,
        PYTHON=venv / 'bin' / 'python',
        STAMPS=venv / '.setup',
        REQUIREMENTS=tmp_path / 'requirements',
        really_run=module.run,
        commands={},
    ).items():
        monkeypatch.setattr(module, name, value, raising=False)
    for name in module.INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def note(step: str, *command: Path | str) -> None:
        module.commands[step] = [str(word) for word in command]
        if step == 'venv':
            module.PYTHON.parent.mkdir(parents=True)
            module.PYTHON.touch()

    monkeypatch.setattr(module, 'run', note)
    monkeypatch.delenv('TORCH', raising=False)
    return module


def steps(setup) -> list[str]:
    """Run the set-up; return the steps that were taken."""
    setup.commands.clear()
    setup.main()
    return list(setup.commands)


def test_what_is_done_again(setup, monkeypatch):
    assert steps(setup) == ALL
    assert steps(setup) == []
    for name in setup.INPUTS:
        (setup.ROOT / name).write_text('another')
        assert steps(setup) == ALL[1:], name
    setup.PYTHON.unlink()
    assert steps(setup) == ALL
    # Moved, or of another Python.
    (setup.STAMPS / 'venv').write_text('elsewhere')
    assert steps(setup) == ALL


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


def test_chosen_torch_holds_until_another_is_chosen(setup, monkeypatch):
    setup.main()
    assert setup.commands['torch'][-1].endswith('requirements/torch.txt')
    monkeypatch.setenv('TORCH', '2.14.1')
    assert steps(setup) == ALL[1:]
    assert 'torch==2.14.1' in setup.commands['torch']
    monkeypatch.delenv('TORCH')
    assert steps(setup) == []
    # One that cannot be installed is not kept.
    with monkeypatch.context() as patch:
        patch.setenv('TORCH', '99')
        patch.setattr(setup, 'run', lambda *_: sys.exit('no such version'))
        with pytest.raises(SystemExit):
            setup.main()
    assert steps(setup) == ALL[1:]
    assert 'torch==2.14.1' in setup.commands['torch']


def test_foreign_venv_is_left_alone(setup):
    setup.VENV.mkdir()
    with pytest.raises(SystemExit, match='not made by this set-up'):
        setup.main()
    assert setup.VENV.is_dir()


def test_a_command_runs_without_the_users_python_path(setup, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(setup.ROOT))
    command = "import os; assert 'PYTHONPATH' not in os.environ; exit(7)"
    with pytest.raises(SystemExit, match=r'"any" failed \(exit status 7 of'):
        setup.really_run('any', sys.executable, '-c', command)


@pytest.mark.parametrize(
    ('version', 'said'), [('3.9.18', 'Python 3.9.18'), ('', 'does not run')]
)
def test_a_python_that_does_not_fit_is_refused(tmp_path, version, said):
    python = tmp_path / 'python3'
    tell = f'[ "$1" = -V ] && echo Python {version}' if version else 'false'
    python.write_text(f'#!/bin/sh\n{tell}\n')
    python.chmod(0o755)
    done = run(ROOT / 'tools' / 'setup' / 'setup.sh', PYTHON=str(python))
    assert done.returncode == 1
    assert f'{python}: {said}' in done.stdout
    assert 'make setup PYTHON=' in done.stdout


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
