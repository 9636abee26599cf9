# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The way of mmcv's wheel: found or built, tried, kept, installed."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.nightly.packaging.environment import make_environment
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
    printed = install(
        MEGDET_WHEELHOUSE='/nowhere', PIP_FIND_LINKS=str(tmp_path)
    )
    assert 'mmcv: compiling' in printed
    (wheel,) = (tmp_path / 'cache').rglob('*.whl')
    printed = install()
    assert f'{wheel}: works' in printed
    assert 'compiling' not in printed


def test_failed_build_gives_the_errors_and_the_log(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SETUP)
    import install_mmcv as module

    script = 'print("b.cpp:1:2: error: nothing")\nraise SystemExit(1)\n'
    write_sdist(tmp_path, WORKING, script)
    monkeypatch.setattr(module, 'LOG', tmp_path / 'log')
    env = environment(PIP_FIND_LINKS=str(tmp_path), PIP_NO_INDEX='1')
    with pytest.raises(SystemExit) as raised:
        module.compile_wheel(tmp_path / 'dist', env)
    said = str(raised.value)
    assert 'b.cpp:1:2: error: nothing' in said
    assert f'The whole log: {tmp_path}/log' in said
