# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The set-up: what it does again, which torch and which Python it takes."""

import shutil
import sys

import install
import pytest
from packaging.requirements import Requirement

from tests.tools.command import ROOT, run

ALL = ['venv', 'packages', 'torch', 'mmcv', 'project']


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """Sets an empty tree up, each step only noted; returns what is noted."""
    monkeypatch.delenv('TORCH', raising=False)
    for name in ('VENV', 'PYTHON', 'STAMPS', 'REQUIREMENTS', 'ROOT'):
        place = tmp_path / getattr(install, name).relative_to(ROOT)
        monkeypatch.setattr(install, name, place)
    for name in install.INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    noted = {}

    def note(step, *command):
        if 'torch==99' in command:
            sys.exit('there is no torch 99')
        noted[step] = ' '.join(map(str, command))
        if step == 'venv':
            install.PYTHON.parent.mkdir(parents=True)
            install.PYTHON.touch()

    monkeypatch.setattr(install, 'run', note)

    def set_up():
        noted.clear()
        install.main()
        return dict(noted)

    return set_up


def test_what_is_done_again(steps):
    assert list(steps()) == ALL
    assert steps() == {}
    for name in install.INPUTS:
        (install.ROOT / name).write_text('another')
        assert list(steps()) == ALL[1:], name
    install.PYTHON.unlink()
    assert list(steps()) == ALL
    # Moved, or of another Python.
    (install.STAMPS / 'venv').write_text('elsewhere')
    assert list(steps()) == ALL
    # Not made by the set-up.
    shutil.rmtree(install.STAMPS)
    with pytest.raises(SystemExit, match='not made by this set-up'):
        steps()
    assert install.PYTHON.exists()


def test_chosen_torch_holds_until_another_is_chosen(steps, monkeypatch):
    assert steps()['torch'].endswith('requirements/torch.txt')
    monkeypatch.setenv('TORCH', '2.14.1')
    assert ' torch==2.14.1 ' in steps()['torch']
    monkeypatch.delenv('TORCH')
    assert steps() == {}
    monkeypatch.setenv('TORCH', '99')
    with pytest.raises(SystemExit):
        steps()
    # It is not kept, yet half of it may be installed.
    monkeypatch.delenv('TORCH')
    again = steps()
    assert list(again) == ALL[1:]
    assert ' torch==2.14.1 ' in again['torch']


def test_a_command_runs_without_the_users_python_path(monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    command = "import os; assert 'PYTHONPATH' not in os.environ; exit(7)"
    with pytest.raises(SystemExit, match=r'"any" failed \(exit status 7 of'):
        install.run('any', sys.executable, '-c', command)


def test_a_python_that_does_not_fit_is_refused(tmp_path):
    python = tmp_path / 'python3'
    python.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.18\n')
    python.chmod(0o755)
    for given, said in ((python, 'Python 3.9.18'), ('none', 'does not run')):
        done = run(ROOT / 'tools' / 'setup' / 'setup.sh', PYTHON=str(given))
        assert done.returncode == 1
        assert f'{given}: {said}' in done.stdout
        assert 'make setup PYTHON=' in done.stdout


def test_lock_names_one_exact_version_for_each_python():
    lines = (ROOT / 'requirements' / 'lock.txt').read_text().splitlines()
    texts = [line.split('#')[0].strip() for line in lines]
    locked = [Requirement(text) for text in texts if text]
    assert all(str(one.specifier).startswith('==') for one in locked)
    names = {one.name for one in locked}
    assert 'opencv-python-headless' in names
    assert 'opencv-python' not in names
    for python in ('3.10', '3.11', '3.12'):
        version = {'python_version': python}
        fitting = [
            one.name
            for one in locked
            if not one.marker or one.marker.evaluate(version)
        ]
        assert len(fitting) == len({*fitting})
        # Only these exist for one side of Python 3.11 alone.
        assert names - {*fitting} <= {'exceptiongroup', 'tomli'}
