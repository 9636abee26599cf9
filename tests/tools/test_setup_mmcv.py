# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How mmcv's wheel is found or built, tried and kept."""

import sys
from pathlib import Path

import install_mmcv as module
import pytest


def test_only_a_wheel_that_works_is_cached(monkeypatch, tmp_path):
    monkeypatch.setattr(module, 'VENV', tmp_path)
    tried, works = [], []
    names = ['2.1.0+a', '2.1.0+b', '2.1.0+c', '2.1.00']
    for name in [*(f'mmcv-{n}' for n in names), 'mmcv_lite-2.1.0']:
        (tmp_path / f'{name}-py3-none-any.whl').touch()

    def install_working(wheel):
        tried.append(wheel.name.split('-')[1])
        return tried[-1] in works

    def compile_wheel(out, env):
        out.mkdir()
        wheel = out / 'mmcv-2.1.0+built-py3-none-any.whl'
        wheel.touch()
        return wheel

    monkeypatch.setattr(module, 'install_working', install_working)
    monkeypatch.setattr(module, 'compile_wheel', compile_wheel)
    monkeypatch.setenv('MEGDET_WHEELHOUSE', str(tmp_path))
    cache = tmp_path / 'cache'
    monkeypatch.setenv('MEGDET_WHEEL_CACHE', str(cache))
    with pytest.raises(SystemExit, match='was built, but does not work'):
        module.main()
    assert tried == [*names[:3], '2.1.0+built']
    assert not cache.exists()
    works.append('2.1.0+built')
    # Built once, and found then.
    for _ in range(2):
        tried.clear()
        module.main()
        assert tried == [*names[:3], '2.1.0+built']
        monkeypatch.setattr(module, 'compile_wheel', None)
    works.append('2.1.0+b')
    tried.clear()
    module.main()
    assert tried == names[:2]


def test_cache_is_at_home(monkeypatch):
    python = 'cp{}{}'.format(*sys.version_info)
    wheels = f'mmdet_megdet/wheels/{python}-torch2.13.0+cu130-cuda9.0'
    monkeypatch.setenv('HOME', '/home/me')
    for value, caches in (('', '/home/me/.cache'), ('/xdg', '/xdg')):
        monkeypatch.setenv('XDG_CACHE_HOME', value)
        found = module.cache_folder('2.13.0+cu130', 'cuda9.0')
        assert found == Path(caches, wheels)


def test_build_environment_forces_ops_and_keeps_the_users_jobs(
    monkeypatch, tmp_path
):
    given = dict(MAX_JOBS='3', MMCV_WITH_OPS='0', FORCE_CUDA='1')
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    env = module.build_environment('g++', tmp_path, False, '2.13.0+cpu')
    assert (env['MMCV_WITH_OPS'], env['MAX_JOBS']) == ('1', '3')
    assert env['FORCE_CUDA'] == '0'
    assert 'MEGDET_CXX_STD' not in env
    env = module.build_environment('g++', tmp_path, True, '2.15.0+cu130')
    assert (env['FORCE_CUDA'], env['MEGDET_CXX_STD']) == ('1', 'c++20')


def test_compiler_is_the_users_or_a_clear_error(monkeypatch):
    own = f'{sys.executable} -fopenmp'
    monkeypatch.setenv('CXX', own)
    assert module.find_compiler() == own
    monkeypatch.setenv('PATH', '/nowhere')
    for command in ('', 'nothing-here'):
        monkeypatch.setenv('CXX', command)
        with pytest.raises(SystemExit, match='MEGDET_WHEELHOUSE'):
            module.find_compiler()
