# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The set-up: what it does again, which torch and which Python it takes."""

from __future__ import annotations

import shutil
import sys

import pytest
from packaging.requirements import Requirement

from tests.tools.command import ROOT, run

ALL = ['venv', 'packages', 'torch', 'mmcv', 'project']


@pytest.fixture
def setup(monkeypatch, tmp_path):
    """The module, on an empty tree in which each step is only noted."""
    monkeypatch.syspath_prepend(ROOT / 'tools' / 'setup')
    monkeypatch.delenv('TORCH', raising=False)
    import install as module

    for name in ('VENV', 'PYTHON', 'STAMPS', 'REQUIREMENTS'):
        place = tmp_path / getattr(module, name).relative_to(ROOT)
        monkeypatch.setattr(module, name, place)
    monkeypatch.setattr(module, 'ROOT', tmp_path)
    monkeypatch.setattr(module, 'run', Steps(module.run))
    for name in module.INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return module


class Steps(dict):
    """The commands of the steps that were taken."""

    fails = False

    def __init__(self, really):
        self.really = really

    def __call__(self, step, *command):
        if self.fails:
            sys.exit('full disk')
        self[step] = ' '.join(map(str, command))
        if step == 'venv':
            python = command[-1] / 'bin' / 'python'
            python.parent.mkdir(parents=True)
            python.touch()


def steps(setup):
    setup.run.clear()
    setup.main()
    return list(setup.run)


def test_what_is_done_again(setup):
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
    # Not made by the set-up.
    shutil.rmtree(setup.STAMPS)
    with pytest.raises(SystemExit, match='not made by this set-up'):
        setup.main()
    assert setup.PYTHON.exists()


def test_chosen_torch_holds_until_another_is_chosen(setup, monkeypatch):
    setup.main()
    assert setup.run['torch'].endswith('requirements/torch.txt')
    monkeypatch.setenv('TORCH', '2.14.1')
    assert steps(setup) == ALL[1:]
    assert ' torch==2.14.1 ' in setup.run['torch']
    monkeypatch.delenv('TORCH')
    assert steps(setup) == []
    monkeypatch.setenv('TORCH', '99')
    setup.run.fails = True
    with pytest.raises(SystemExit):
        setup.main()
    # It is not kept, yet half of it may be installed.
    setup.run.fails = False
    monkeypatch.delenv('TORCH')
    assert steps(setup) == ALL[1:]
    assert ' torch==2.14.1 ' in setup.run['torch']


def test_a_command_runs_without_the_users_python_path(setup, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    command = "import os; assert 'PYTHONPATH' not in os.environ; exit(7)"
    with pytest.raises(SystemExit, match=r'"any" failed \(exit status 7 of'):
        setup.run.really('any', sys.executable, '-c', command)


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
    lines = (ROOT / 'requirements' / 'lock.txt').read_text().splitlines()
    texts = [line.split('#')[0].strip() for line in lines]
    locked = [Requirement(text) for text in texts if text]
    names = sorted({requirement.name for requirement in locked})
    for python in ('3.10', '3.11', '3.12'):
        version = {'python_version': python}
        fitting = [
            r for r in locked if not r.marker or r.marker.evaluate(version)
        ]
        assert all(str(r.specifier).startswith('==') for r in fitting)
        # Only these exist for one side of Python 3.11 alone.
        older = ['exceptiongroup', 'tomli']
        found = sorted(r.name for r in fitting)
        assert sorted({*found, *older}) == names
        assert len(found) == len({*found})
    assert 'opencv-python' not in names
    assert 'opencv-python-headless' in names
