# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Choosing, building and checking mmcv's wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from tests.packaging.environment import make_environment
from tests.tools.command import ROOT, environment, run

SETUP = ROOT / 'tools' / 'setup'
# What check_mmcv.py calls, computed so plainly that its answers are known.
WORKING = """
import torch
def nms(boxes, scores, iou_threshold):
    return boxes, torch.tensor([0, 2])
def roi_align(image, roi, size):
    return torch.full((1, 1, *size), 3.0)
"""
WRONG = WORKING.replace('[0, 2]', '[0, 1, 2]')
# As mmcv's own package: ops load the extension, which is not there.
WITHOUT_OPS = 'import mmcv._ext'
SETUP_PY = """
from setuptools import setup
setup(name='mmcv', version='2.1.0', packages=['mmcv'])
"""


def write_wheel(folder: Path, ops: str, version: str) -> None:
    """A wheel of mmcv with these ops."""
    info = f'mmcv-{version}.dist-info'
    tag = 'py3-none-any'
    with zipfile.ZipFile(folder / f'mmcv-{version}-{tag}.whl', 'w') as file:
        file.writestr('mmcv/__init__.py', '')
        file.writestr('mmcv/ops.py', ops)
        text = f'Metadata-Version: 2.1\nName: mmcv\nVersion: {version}\n'
        file.writestr(f'{info}/METADATA', text)
        text = f'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n'
        file.writestr(f'{info}/WHEEL', text)
        file.writestr(f'{info}/RECORD', '')


def write_sdist(folder: Path, ops: str, script: str = SETUP_PY) -> None:
    """An sdist of mmcv 2.1.0 with these ops."""
    source = folder / 'mmcv-2.1.0'
    (source / 'mmcv').mkdir(parents=True)
    (source / 'mmcv' / '__init__.py').touch()
    (source / 'mmcv' / 'ops.py').write_text(ops)
    (source / 'setup.py').write_text(script)
    with tarfile.open(folder / 'mmcv-2.1.0.tar.gz', 'w:gz') as tar:
        tar.add(source, source.name)


@pytest.fixture
def install(tmp_path):
    """Runs install_mmcv.py in an environment of its own, offline."""
    python = make_environment(tmp_path / 'env')

    def install(**env: str) -> str:
        env = {'MEGDET_WHEEL_CACHE': str(tmp_path / 'cache'), **env}
        script = SETUP / 'install_mmcv.py'
        done = run(python, script, cwd=tmp_path, PIP_NO_INDEX='1', **env)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return install


def test_wheel_that_works_is_taken_from_the_users_folder(install, tmp_path):
    write_wheel(tmp_path, WITHOUT_OPS, '2.1.0+a')
    write_wheel(tmp_path, WRONG, '2.1.0+b')
    write_wheel(tmp_path, WORKING, '2.1.0+cu130')
    write_wheel(tmp_path, WORKING, '2.1.00')
    (tmp_path / 'mmcv-2.1.0+0-py3-none-any.whl').touch()  # truncated
    (tmp_path / 'mmcv_lite-2.1.0-py3-none-any.whl').touch()
    verdicts = dict(
        line.split('/')[-1].split('-py3-none-any.whl: ')
        for line in install(MEGDET_WHEELHOUSE=str(tmp_path)).splitlines()
        if '-any.whl: ' in line
    )
    assert verdicts == {
        'mmcv-2.1.0+0': 'pip cannot install it here',
        'mmcv-2.1.0+a': 'it was built without its ops (there is no mmcv._ext)',
        'mmcv-2.1.0+b': 'RuntimeError: nms on cpu kept [0, 1, 2]',
        'mmcv-2.1.0+cu130': 'works',
    }


def test_wheel_is_built_once_and_taken_from_the_cache_then(install, tmp_path):
    write_sdist(tmp_path, WORKING)
    house = tmp_path / 'house'
    house.mkdir()
    printed = install(
        MEGDET_WHEELHOUSE=str(house), PIP_FIND_LINKS=str(tmp_path)
    )
    assert f'no wheel of mmcv 2.1.0 in {house}' in printed
    assert 'compiling mmcv' in printed
    (wheel,) = (tmp_path / 'cache').rglob('*.whl')
    printed = install()
    assert f'{wheel}: works' in printed
    assert 'compiling' not in printed


def test_installed_mmcv_works():
    check = [sys.executable, SETUP / 'check_mmcv.py']
    subprocess.run(check, env=environment(), check=True)


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(SETUP)
    import install_mmcv

    return install_mmcv


def test_build_that_does_not_work_is_not_cached(module, monkeypatch, tmp_path):
    def compile_wheel(requirement: str, out: Path, env: dict) -> Path:
        out.mkdir()
        write_wheel(out, WITHOUT_OPS, '2.1.0')
        return next(out.iterdir())

    monkeypatch.setattr(module, 'compile_wheel', compile_wheel)
    monkeypatch.setattr(module, 'install_working', lambda wheel: False)
    cache = tmp_path / 'cache'
    with pytest.raises(SystemExit, match='was built, but does not work'):
        module.build('mmcv==2.1.0', cache, '', '2.13.0')
    assert not cache.exists()


@pytest.mark.parametrize('cuda', ['0', '1'])
def test_failed_build_gives_the_errors_and_the_log(
    module, monkeypatch, tmp_path, cuda
):
    script = 'print("b.cpp:1:2: error: nothing")\nraise SystemExit(1)\n'
    write_sdist(tmp_path, WORKING, script)
    monkeypatch.setattr(module, 'LOG', tmp_path / 'log')
    env = environment(
        PIP_FIND_LINKS=str(tmp_path), PIP_NO_INDEX='1', FORCE_CUDA=cuda
    )
    with pytest.raises(SystemExit) as raised:
        module.compile_wheel('mmcv==2.1.0', tmp_path / 'dist', env)
    said = str(raised.value)
    assert 'b.cpp:1:2: error: nothing' in said
    assert said.endswith(f'The whole log: {tmp_path}/log')
    assert ('CUDA ops need a CUDA toolkit' in said) is (cuda == '1')


def test_users_folder_that_is_not_there_is_an_error(module, monkeypatch):
    monkeypatch.delenv('FORCE_CUDA', raising=False)
    monkeypatch.setenv('MEGDET_WHEELHOUSE', '/nowhere')
    with pytest.raises(SystemExit, match='=/nowhere is not a folder'):
        module.main()


def test_cuda_ops_for_a_torch_without_cuda_are_refused(module, monkeypatch):
    monkeypatch.setattr(torch.version, 'cuda', None)
    monkeypatch.setenv('FORCE_CUDA', '1')
    with pytest.raises(SystemExit, match='is a build without CUDA'):
        module.main()


def test_cache_is_at_home_or_where_the_user_says(module, monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    python = 'cp{}{}'.format(*sys.version_info)
    for env, folder in (
        ({}, '/home/me/.cache/mmdet_megdet/wheels'),
        ({'XDG_CACHE_HOME': '/xdg'}, '/xdg/mmdet_megdet/wheels'),
        ({'MEGDET_WHEEL_CACHE': '/mine'}, '/mine'),
    ):
        found = module.cache_folder('2.13.0+cu130', 'cu13.0-9.0', env)
        name = f'{python}-torch2.13.0+cu130-cu13.0-9.0'
        assert found == Path(folder, name)


GCC_LOG = """\
[1/77] g++ -c a.cpp
a.cpp:3:1: warning: unused parameter 'error' [-Wunused]
[2/77] g++ -c b.cpp
FAILED: b.o
b.cpp: In function 'int f()':
b.cpp:12:10: error: 'nothing' was not declared in this scope
"""


@pytest.mark.parametrize(
    ('log', 'expected'),
    [
        (GCC_LOG, GCC_LOG.splitlines()[-1]),
        ('x\nq.hpp:3: fatal error: Python.h: No such file\ny\n', 'q.hpp:3'),
        ('g++: fatal error: Killed signal terminated program\n', 'g++: fatal'),
        ('nms.cu(12): error: identifier "x" is undefined\n', 'nms.cu(12)'),
        ("ld: a.o: undefined reference to `f()'\n", 'ld: a.o'),
        ('RuntimeError: The detected CUDA version (12.8) mis', 'RuntimeError'),
        ('one\n\ntwo\n', 'one'),
    ],
)
def test_first_error_is_found_in_a_log(module, log, expected):
    assert module.first_errors(log).startswith(expected)


def test_build_environment_forces_ops_and_keeps_the_users_jobs(
    module, monkeypatch, tmp_path
):
    for name, value in ('MAX_JOBS', '3'), ('MMCV_WITH_OPS', '0'):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('FORCE_CUDA', '1')
    env = module.build_environment('g++', tmp_path, '', '2.13.0+cpu')
    assert (env['MMCV_WITH_OPS'], env['MAX_JOBS']) == ('1', '3')
    assert env['FORCE_CUDA'] == '0'
    assert 'MEGDET_CXX_STD' not in env
    env = module.build_environment('g++', tmp_path, '9.0', '2.15.0+cu130')
    assert (env['FORCE_CUDA'], env['TORCH_CUDA_ARCH_LIST']) == ('1', '9.0')
    assert env['MEGDET_CXX_STD'] == 'c++20'


def test_compiler_is_the_users_or_a_clear_error(module, monkeypatch):
    own = f'{sys.executable} -fopenmp'
    assert module.find_compiler({'CXX': own}) == own
    monkeypatch.setenv('PATH', '/nowhere')
    for env in {}, {'CXX': 'nothing-here'}:
        with pytest.raises(SystemExit, match='MEGDET_WHEELHOUSE'):
            module.find_compiler(env)


def test_architectures_are_the_users_if_given(module):
    given = {'TORCH_CUDA_ARCH_LIST': '8.0;9.0'}
    assert module.arch_list(given) == '8.0;9.0'
