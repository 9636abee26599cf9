# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the sdist and the wheel hold, and that the wheel suffices to train."""

import email
import re
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.tools.command import ROOT, run

# Unlike any that was ever released: it cannot come from another installation.
VERSION = '9.8.7'
# One update of eight images, four at once on the only rank.
TINY = """
_base_ = 'mmdet_megdet::megdet/shapes_r18_fpn.py'
train_dataloader = dict(num_workers=0, persistent_workers=False)
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
FROM_FILES = ('--no-deps', '--no-index', '--no-build-isolation')


def check(*command, cwd=None, **variables):
    """Run a command without the repository; return what it printed."""
    done = run(*command, cwd=cwd, PYTHONPATH='', **variables)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """The sdist of the project and the wheel that is built from the sdist.

    Both by the installed setuptools, offline, of a copy of the project with
    another version in the one place for it.
    """
    folder = tmp_path_factory.mktemp('built')
    names = ('.*', '__pycache__', '*.egg-info', 'build', 'dist', 'work_dirs')
    ignored = shutil.ignore_patterns(*names)
    source = Path(shutil.copytree(ROOT, folder / 'project', ignore=ignored))
    version = source / 'mmdet_megdet' / 'version.py'
    version.write_text(f'__version__ = {VERSION!r}\n')
    dist = folder / 'dist'
    script = 'from setuptools import build_meta as b; b.build_sdist("../dist")'
    check(sys.executable, '-c', script, cwd=source)
    (sdist,) = dist.iterdir()
    pip_wheel = (sys.executable, '-m', 'pip', 'wheel', *FROM_FILES, '-w', dist)
    check(*pip_wheel, sdist, cwd=folder)
    (wheel,) = dist.glob('*.whl')
    return SimpleNamespace(source=source, sdist=sdist, wheel=wheel)


def make_environment(folder, *installed):
    """Make an environment that has all, but this package as is said.

    The rest is the tests' own interpreter's, whose ``.pth`` files are not
    read: an editable installation of this package there is not found here.
    """
    venv.create(folder, symlinks=True)
    python = folder / 'bin' / 'python'
    paths = sysconfig.get_path('purelib'), sysconfig.get_path('platlib')
    add_packages(python, 'others', *paths)
    check(python, '-m', 'pip', 'install', *FROM_FILES, *installed)
    return python


def add_packages(python, name, *folders):
    """Let an environment import from more folders, after its own."""
    (packages,) = python.parents[1].glob('lib/python*/site-packages')
    lines = dict.fromkeys(map(str, folders))  # purelib may be platlib
    (packages / f'{name}.pth').write_text('\n'.join(lines) + '\n')


@pytest.fixture(scope='module')
def installed(built, tmp_path_factory):
    """The wheel, installed; a folder elsewhere with data and a config."""
    folder = tmp_path_factory.mktemp('installed')
    python = make_environment(folder / 'env', built.wheel)
    generate = (python, '-m', 'mmdet_megdet.demo_data', 'shapes')
    check(*generate, '--train', '8', '--val', '2', cwd=folder)
    (folder / 'tiny.py').write_text(TINY)
    return SimpleNamespace(python=python, run=folder)


def files(source, part):
    """Names of all files below a folder of the project."""
    found = (source / part).rglob('*')
    return {p.relative_to(source).as_posix() for p in found if p.is_file()}


def test_sdist_holds_the_project(built):
    with tarfile.open(built.sdist) as tar:
        members = {m.name for m in tar.getmembers() if m.isfile()}
    assert built.sdist.name == f'mmdet_megdet-{VERSION}.tar.gz'
    held = {name.partition('/')[2] for name in members}
    expected = files(built.source, 'mmdet_megdet')
    for folder in ('configs', 'docs', 'requirements', 'tests', 'tools'):
        expected |= files(built.source, folder)
    expected |= {p.name for p in built.source.iterdir() if p.is_file()}
    assert expected - held == set()
    assert not [name for name in held if '.mim' in name or '.pyc' in name]


def test_wheel_holds_the_package_and_what_mim_looks_for(built):
    with zipfile.ZipFile(built.wheel) as archive:
        held = set(archive.namelist())
        info = f'mmdet_megdet-{VERSION}.dist-info'
        metadata = email.message_from_bytes(archive.read(f'{info}/METADATA'))
        script = archive.getinfo('mmdet_megdet/.mim/tools/dist_train.sh')
    tools = files(built.source, 'tools') - {'tools/demo.sh'}
    # Setting up .venv and the demo that runs there need the repository.
    tools -= files(built.source, 'tools/setup')
    mim = files(built.source, 'configs') | tools
    mim |= {'model-index.yml', 'tools/setup/check_mmcv.py'}
    expected = files(built.source, 'mmdet_megdet')
    expected |= {f'mmdet_megdet/.mim/{name}' for name in mim}
    assert {n for n in held if not n.startswith(info)} == expected
    assert {f'{info}/licenses/LICENSE', 'mmdet_megdet/py.typed'} <= held
    assert script.external_attr >> 16 & 0o111  # a user may run it

    assert (metadata['Name'], metadata['Version']) == ('mmdet-megdet', VERSION)
    assert metadata['Requires-Python'] == '<3.13,>=3.10'
    # With the forks of the OpenMMLab libraries there must be no stock ones.
    asked = [r for r in metadata.get_all('Requires-Dist') if 'extra' not in r]
    assert asked == ['msgspec', 'numpy', 'rich']


def test_installed_wheel_trains_one_iteration(installed):
    (package,) = installed.python.parents[1].rglob('mmdet_megdet')
    script = package / '.mim' / 'tools' / 'train.py'
    there = dict(cwd=installed.run, SHAPES_ROOT='shapes')
    log = check(installed.python, script, 'tiny.py', **there)
    assert 'Epoch(train) [1][1/1]' in log
    # Of MMEngine, where it does not find the registries of a scope.
    assert 'Failed to ' not in log
    path = installed.run / 'work_dirs' / 'tiny' / 'epoch_1.pth'
    state = torch.load(path, weights_only=False)['state_dict']
    assert state['backbone.bn1.num_batches_tracked'] == 1
    assert all(value.isfinite().all() for value in state.values())
    # It is the wheel that ran.
    printed = check(installed.python, '-c', PRINT_CONFIG, 'tiny.py', **there)
    version, file = printed.splitlines()[-1].split()
    assert (version, Path(file).parent) == (VERSION, package)


def test_editable_installation_shows_a_config_as_it_is_now(built, tmp_path):
    python = make_environment(tmp_path / 'env', '-e', built.source)
    shapes = built.source / 'configs' / 'megdet' / 'shapes_r18_fpn.py'
    before = shapes.read_text()
    shapes.write_text(before + '\nmark = "changed"\n')
    config = tmp_path / 'config.py'
    config.write_text(TINY)
    printed = check(python, '-c', PRINT_CONFIG, config, cwd=tmp_path)
    shapes.write_text(before)
    mark, where = printed.splitlines()[-2:]
    assert mark == 'changed'
    assert where == f'{VERSION} {built.source}/mmdet_megdet/__init__.py'


def test_mim(installed, tmp_path):
    """In the wheel's environment, with mim in a folder of its own."""
    packages = tmp_path / 'mim'
    pip = (sys.executable, '-m', 'pip', '--retries', '1', '--timeout', '15')
    options = ('install', '-q', '--no-deps', '--no-compile', '-t', packages)
    wanted = ('-r', ROOT / 'requirements' / 'mim.txt')
    done = run(*pip, *options, *wanted, cold=True)
    if done.returncode:
        pytest.skip(f'pip could not install mim.txt: {done.stdout.strip()}')
    add_packages(installed.python, 'mim', packages)

    def mim(*arguments):
        main = 'from mim.cli import cli; cli()'
        return check(
            *(installed.python, '-W', 'ignore', '-c', main, *arguments),
            cwd=installed.run,
            HOME=str(tmp_path),  # mim makes a cache folder there
            SHAPES_ROOT='shapes',
        )

    work_dir = ('--gpus', '0', '--work-dir', tmp_path / 'run')
    trained = mim('train', 'mmdet_megdet', 'tiny.py', *work_dir)
    assert 'Epoch(train) [1][1/1]' in trained
    assert 'Training finished successfully' in trained
    # A config of the package, by its name alone.
    checkpoint = ('--checkpoint', tmp_path / 'run' / 'epoch_1.pth')
    words = ('test', 'mmdet_megdet', 'shapes_r18_fpn.py', *checkpoint)
    tested = mim(*words, *work_dir)
    assert 'Epoch(test) [2/2]' in tested
    assert 'Testing finished successfully' in tested
    found = mim('search', 'mmdet_megdet', '--config', 'megdet_bccd_r18_fpn')
    models = (ROOT / 'configs' / 'megdet' / 'metafile.yml').read_text()
    _, _, model = models.partition('Name: megdet_bccd_r18_fpn\n')
    assert re.search(r'box AP: (\S+)', model)[1] in found
