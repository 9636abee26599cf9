# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What mmcv's wheel is built with and where it is kept.

The whole way of a wheel: tests/nightly/packaging/test_mmcv_wheel.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.tools.command import ROOT, environment

SETUP = ROOT / 'tools' / 'setup'


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
        return out / 'mmcv.whl'

    monkeypatch.setattr(module, 'compile_wheel', compile_wheel)
    monkeypatch.setattr(module, 'install_working', lambda wheel: False)
    cache = tmp_path / 'cache'
    with pytest.raises(SystemExit, match='was built, but does not work'):
        module.build('mmcv==2.1.0', cache, '', '2.13.0')
    assert not cache.exists()


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


@pytest.mark.parametrize(
    'shown',
    [
        "b.cpp:12:10: error: 'nothing' was not declared in this scope\n"
        '   12 |   return nothing;\n'
        '      |          ^~~~~~~',
        'q.hpp:3:10: fatal error: Python.h: No such file or directory',
        'g++: fatal error: Killed signal terminated program cc1plus',
        'nms.cu(12): error: identifier "x" is undefined',
        "ld: a.o: undefined reference to `f()'",
        # Of torch, two lines further on.
        '  RuntimeError:\n  The detected CUDA version (13.0) mismatches the',
    ],
)
def test_first_error_is_found_in_a_log(module, shown):
    log = (
        '[1/77] g++ -c a.cpp\n'
        "a.cpp:3:1: warning: unused parameter 'error' [-Wunused]\n\n"
        f'{shown}\n'
        '[3/77] g++ -c c.cpp\n'
        'RuntimeError: Error compiling objects for extension\n'
        'error: subprocess-exited-with-error\nof pip\n'
    )
    assert module.first_error(log).startswith(shown)


def test_log_without_a_known_error_is_shown_from_its_end(module):
    log = 'one\n\ntwo\nerror: subprocess-exited-with-error\nof pip\n'
    assert module.first_error(log) == 'one\ntwo'


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
