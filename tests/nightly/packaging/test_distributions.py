# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the sdist and the wheel hold, and that the wheel suffices to train."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.nightly.packaging.environment import (
    VERSION,
    add_packages,
    build,
    check,
    copy_source,
    make_environment,
    pip_install,
    unpack,
)
from tests.tools.command import ROOT

# One update of eight images, four at once on the only rank.
TINY = """
_base_ = 'mmdet_megdet::megdet/shapes_r18_fpn.py'
train_dataloader = dict(num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=1, val_begin=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=1))
"""
PRINT_CONFIG = """
import sys
from mmengine.config import Config
import mmdet_megdet
print(Config.fromfile(sys.argv[1]).get('mark'))
print(mmdet_megdet.__version__, mmdet_megdet.__file__)
"""


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """The sdist of the project and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp('built')
    source = copy_source(folder / 'project')
    sdist = build(source, 'sdist', folder / 'dist')
    unpacked = unpack(sdist, folder / 'unpacked')
    wheel = build(unpacked, 'wheel', folder / 'dist')
    return SimpleNamespace(source=source, sdist=sdist, wheel=wheel)


@pytest.fixture(scope='module')
def installed(built, tmp_path_factory):
    """The wheel, installed; a folder elsewhere with data and a config."""
    folder = tmp_path_factory.mktemp('installed')
    python = make_environment(folder / 'env')
    pip_install(python, built.wheel)
    generate = ('-m', 'mmdet_megdet.demo_data', 'shapes')
    run = folder / 'run'
    run.mkdir()
    check(python, *generate, '--train', '8', '--val', '2', cwd=run)
    (run / 'tiny.py').write_text(TINY)
    return SimpleNamespace(python=python, run=run)


def files(folder: Path) -> set[str]:
    """Relative names of all files below a folder."""
    found = (p.relative_to(folder) for p in folder.rglob('*') if p.is_file())
    return {path.as_posix() for path in found}


def test_sdist_holds_the_project(built):
    with tarfile.open(built.sdist) as tar:
        members = {m.name for m in tar.getmembers() if m.isfile()}
    assert built.sdist.name == f'mmdet_megdet-{VERSION}.tar.gz'
    held = {name.partition('/')[2] for name in members}
    parts = ('mmdet_megdet', 'configs', 'docs', 'requirements', 'tests')
    for part in (*parts, 'tools'):
        names = {f'{part}/{name}' for name in files(built.source / part)}
        assert names <= held
    alone = {'LICENSE', 'Makefile', 'README.md', 'README.zh-CN.md'}
    alone |= {'setup.py', 'pyproject.toml', 'MANIFEST.in', 'CHANGELOG.md'}
    alone |= {'CONTRIBUTING.md', 'mmdet_megdet/py.typed'}
    assert alone | {'model-index.yml'} <= held
    assert not [name for name in held if '.mim' in name or '.pyc' in name]


def test_wheel_holds_the_package_and_what_mim_looks_for(built):
    with zipfile.ZipFile(built.wheel) as archive:
        held = set(archive.namelist())
        info = f'mmdet_megdet-{VERSION}.dist-info'
        metadata = email.message_from_bytes(archive.read(f'{info}/METADATA'))
        script = archive.getinfo('mmdet_megdet/.mim/tools/dist_train.sh')
    package = {
        f'mmdet_megdet/{n}' for n in files(built.source / 'mmdet_megdet')
    }
    configs = {f'configs/{n}' for n in files(built.source / 'configs')}
    tools = {f'tools/{n}' for n in files(built.source / 'tools')}
    # Setting up .venv and the demo that runs there need the repository.
    tools -= {n for n in tools if n.startswith('tools/setup/')}
    tools -= {'tools/demo.sh'}
    mim = configs | tools | {'model-index.yml', 'tools/setup/check_mmcv.py'}
    expected = package | {f'mmdet_megdet/.mim/{name}' for name in mim}
    assert {n for n in held if not n.startswith(info)} == expected
    assert f'{info}/licenses/LICENSE' in held
    assert 'mmdet_megdet/py.typed' in held
    assert script.external_attr >> 16 & 0o111  # a user may run it

    assert (metadata['Name'], metadata['Version']) == ('mmdet-megdet', VERSION)
    assert metadata['License-Expression'] == 'Apache-2.0'
    assert metadata['Requires-Python'] == '<3.13,>=3.10'
    assert metadata.get_payload().startswith('# ')  # the README
    # With the forks of the OpenMMLab libraries there must be no stock ones.
    asked = [r for r in metadata.get_all('Requires-Dist') if 'extra' not in r]
    assert asked == ['msgspec', 'numpy', 'rich']


def test_installed_wheel_trains_one_iteration(installed):
    (package,) = installed.python.parents[1].rglob('mmdet_megdet')
    script = package / '.mim' / 'tools' / 'train.py'
    log = check(
        installed.python,
        script,
        'tiny.py',
        cwd=installed.run,
        SHAPES_ROOT='shapes',
    )
    assert 'Epoch(train) [1][1/1]' in log
    # Of MMEngine, where it does not find the registries of a scope.
    assert 'Failed to ' not in log
    saved = torch.load(
        installed.run / 'work_dirs' / 'tiny' / 'epoch_1.pth',
        weights_only=False,
    )
    assert saved['meta']['iter'] == 1
    norm = 'backbone.bn1.num_batches_tracked'
    assert saved['state_dict'][norm] == 1
    assert all(v.isfinite().all() for v in saved['state_dict'].values())
    # It is the wheel that ran.
    printed = check(
        installed.python, '-c', PRINT_CONFIG, 'tiny.py', cwd=installed.run
    )
    version, file = printed.splitlines()[-1].split()
    assert version == VERSION
    assert Path(file).parent == package


def test_editable_installation_shows_a_config_as_it_is_now(built, tmp_path):
    python = make_environment(tmp_path / 'env')
    pip_install(python, '-e', built.source)
    shapes = built.source / 'configs' / 'megdet' / 'shapes_r18_fpn.py'
    before = shapes.read_text()
    shapes.write_text(before + '\nmark = "changed"\n')
    config = tmp_path / 'config.py'
    config.write_text(TINY)
    printed = check(python, '-c', PRINT_CONFIG, config, cwd=tmp_path)
    shapes.write_text(before)
    mark, where = printed.splitlines()[-2:]
    assert mark == 'changed'
    assert where.split()[0] == VERSION
    assert built.source in Path(where.split()[1]).parents


@pytest.fixture
def with_mim(installed, tmp_path):
    """The wheel's environment, with mim in a folder of its own."""
    packages = tmp_path / 'mim'
    pip = [sys.executable, '-m', 'pip', '--retries', '1', '--timeout', '15']
    options = ['install', '-q', '--no-deps', '--no-compile', '-t', packages]
    requirements = ROOT / 'requirements' / 'mim.txt'
    done = subprocess.run(
        [*pip, *options, '-r', requirements], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f'pip could not install mim.txt: {done.stderr.strip()}')
    add_packages(installed.python, 'mim', packages)
    return installed


def test_mim(with_mim, tmp_path):
    def mim(*arguments: str | Path) -> str:
        main = 'from mim.cli import cli; cli()'
        return check(
            with_mim.python,
            *('-W', 'ignore', '-c', main, *arguments),
            cwd=with_mim.run,
            HOME=str(tmp_path),  # mim makes a cache folder there
            SHAPES_ROOT='shapes',
        )

    work_dir = tmp_path / 'run'
    trained = mim(
        *('train', 'mmdet_megdet', 'tiny.py', '--gpus', '0'),
        *('--work-dir', work_dir),
    )
    assert 'Epoch(train) [1][1/1]' in trained
    assert 'Training finished successfully' in trained
    # A config of the package, by its name alone.
    tested = mim(
        *('test', 'mmdet_megdet', 'shapes_r18_fpn.py', '--gpus', '0'),
        *('--checkpoint', work_dir / 'epoch_1.pth', '--work-dir', work_dir),
    )
    assert 'Epoch(test) [2/2]' in tested
    assert 'Testing finished successfully' in tested
    found = mim('search', 'mmdet_megdet', '--config', 'megdet_bccd_r18_fpn')
    assert '44.8' in found
