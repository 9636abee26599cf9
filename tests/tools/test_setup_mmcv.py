# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Choosing, checking and building mmcv's wheel."""

from __future__ import annotations

import importlib
import io
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import parse_tag, sys_tags

SETUP = Path(__file__).resolve().parents[2] / 'tools' / 'setup'
PYTHON = 'cp{}{}'.format(*sys.version_info)
FITTING = f'mmcv-2.1.0-{next(iter(sys_tags()))}.whl'


@pytest.fixture
def load(monkeypatch):
    """Import one of the set-up's modules as it is imported when it runs."""
    monkeypatch.syspath_prepend(SETUP)
    return importlib.import_module


@pytest.fixture
def wheels(load):
    return load('wheels')


def write_wheel(path: Path, **modules: str) -> Path:
    """A wheel that holds mmcv with these modules."""
    with zipfile.ZipFile(path, 'w') as archive:
        for name, text in modules.items():
            archive.writestr(f'mmcv/{name}.py', text)
    return path


# What check_mmcv.py calls, computed so plainly that its answers are known.
WORKING_OPS = """
import torch
def nms(boxes, scores, iou_threshold):
    return boxes, torch.tensor([0, 2])
def roi_align(image, roi, size):
    return torch.full((1, 1, *size), 3.0)
"""


def test_cache_key_names_python_torch_and_cuda(wheels, tmp_path):
    env = {'MEGDET_WHEEL_CACHE': str(tmp_path)}
    folder = wheels.cache_folder('2.13.0+cu130', 'cu13.0-9.0', env)
    assert folder == tmp_path / f'{PYTHON}-torch2.13.0+cu130-cu13.0-9.0'
    cpu = wheels.cache_folder('2.13.0+cu130', 'cpu', env)
    assert cpu == tmp_path / f'{PYTHON}-torch2.13.0+cu130-cpu'


def test_cache_follows_xdg_or_lies_at_home(wheels, monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    key = f'mmdet_megdet/wheels/{PYTHON}-torch2.13.0-cpu'
    at_home = wheels.cache_folder('2.13.0', 'cpu', {})
    assert at_home == tmp_path / 'home' / '.cache' / key
    env = {'XDG_CACHE_HOME': str(tmp_path / 'xdg')}
    assert wheels.cache_folder('2.13.0', 'cpu', env) == tmp_path / 'xdg' / key


def test_only_wheels_for_this_python_platform_and_version_fit(
    wheels, tmp_path
):
    names = {
        'mmcv-2.1.0-cp311-cp311-linux_x86_64.whl': True,
        'mmcv-2.1.0+cu130-cp311-cp311-linux_x86_64.whl': True,
        'mmcv-2.1.0-cp312-cp312-linux_x86_64.whl': False,
        'mmcv-2.1.0-cp311-cp311-linux_aarch64.whl': False,
        'mmcv-2.0.1-cp311-cp311-linux_x86_64.whl': False,
        'mmcv_lite-2.1.0-py3-none-any.whl': False,
        'mmcv-2.1.0.whl': False,
        'mmcv-2.1.0.tar.gz': False,
    }
    for name in names:
        (tmp_path / name).touch()
    tags = list(parse_tag('cp311-cp311-linux_x86_64'))
    found = wheels.fitting_wheels(tmp_path, 'mmcv', '2.1.0', tags)
    assert {p.name for p in found} == {n for n, fits in names.items() if fits}


def test_most_specific_wheel_comes_first(wheels, tmp_path):
    best, second = 'cp311-cp311-linux_x86_64', 'py3-none-any'
    for tag in (second, best):
        (tmp_path / f'mmcv-2.1.0-{tag}.whl').touch()
    tags = [*parse_tag(best), *parse_tag(second)]
    found = wheels.fitting_wheels(tmp_path, 'mmcv', '2.1.0', tags)
    assert [p.name for p in found] == [
        f'mmcv-2.1.0-{best}.whl',
        f'mmcv-2.1.0-{second}.whl',
    ]


def test_wheel_without_ops_is_refused(wheels, tmp_path):
    # As mmcv's own package: ops load the extension, which is not there.
    wheel = write_wheel(
        tmp_path / FITTING, __init__='', ops='import mmcv._ext'
    )
    assert 'built without its ops' in wheels.fault_of(wheel)


def test_wheel_for_another_torch_is_refused(wheels, tmp_path):
    fault = 'raise ImportError("undefined symbol: _ZN3c10")'
    wheel = write_wheel(tmp_path / FITTING, __init__='', ops=fault)
    assert 'undefined symbol: _ZN3c10' in wheels.fault_of(wheel)


def test_ops_with_wrong_answers_are_refused(wheels, tmp_path):
    wrong = WORKING_OPS.replace('[0, 2]', '[0, 1, 2]')
    wheel = write_wheel(tmp_path / FITTING, __init__='', ops=wrong)
    assert 'nms on cpu kept [0, 1, 2]' in wheels.fault_of(wheel)


def test_truncated_wheel_is_refused(wheels, tmp_path):
    wheel = write_wheel(tmp_path / FITTING, __init__='', ops=WORKING_OPS)
    wheel.write_bytes(wheel.read_bytes()[:100])
    assert 'cannot be unpacked' in wheels.fault_of(wheel)


def test_working_wheel_passes_and_is_kept(wheels, tmp_path):
    wheel = write_wheel(tmp_path / FITTING, __init__='', ops=WORKING_OPS)
    assert wheels.fault_of(wheel) is None
    kept = wheels.keep(wheel, tmp_path / 'cache' / 'key')
    assert kept.read_bytes() == wheel.read_bytes()
    assert list(kept.parent.iterdir()) == [kept]


def test_installed_mmcv_works(wheels):
    assert wheels.fault_of_mmcv() is None


def test_wheelhouse_takes_a_working_wheel(load, tmp_path):
    write_wheel(tmp_path / FITTING, __init__='', ops=WORKING_OPS)
    chosen = load('install_mmcv').from_wheelhouse(tmp_path, 'mmcv', '2.1.0')
    assert chosen == tmp_path / FITTING


def test_wheelhouse_that_has_none_is_said_and_passed_over(
    load, tmp_path, capsys
):
    write_wheel(tmp_path / FITTING, __init__='', ops='import mmcv._ext')
    module = load('install_mmcv')
    assert module.from_wheelhouse(tmp_path, 'mmcv', '2.1.0') is None
    said = capsys.readouterr().out
    assert 'built without its ops' in said
    assert f'it holds {FITTING}' in said


def test_wheelhouse_that_is_not_there_is_an_error(load, tmp_path):
    module = load('install_mmcv')
    with pytest.raises(module.SetupError, match='is not a folder'):
        module.from_wheelhouse(tmp_path / 'none', 'mmcv', '2.1.0')


def test_build_without_ops_fails_and_stays_out_of_the_cache(
    load, monkeypatch, tmp_path
):
    module = load('install_mmcv')
    wheel = write_wheel(
        tmp_path / FITTING, __init__='', ops='import mmcv._ext'
    )
    monkeypatch.setattr(module, 'build', lambda *arguments: wheel)
    cache = tmp_path / 'cache'
    requirement = module.pinned(SETUP.parents[1] / 'requirements/mmcv.txt')
    with pytest.raises(module.SetupError, match='built without its ops'):
        module.built(requirement, cache, None)
    assert not cache.exists()


def test_mmcv_pin_is_one_version(load):
    module = load('install_mmcv')
    requirement = module.pinned(SETUP.parents[1] / 'requirements/mmcv.txt')
    assert str(requirement) == 'mmcv==2.1.0'


def test_torch_version_is_read_without_importing_it(load, tmp_path):
    flavour = load('flavour')
    packages = tmp_path / 'lib' / 'python3.11' / 'site-packages' / 'torch'
    packages.mkdir(parents=True)
    text = "__version__ = '2.13.0{}'\ncuda: Optional[str] = {}\n"
    (packages / 'version.py').write_text(text.format('+cu130', "'13.0'"))
    assert flavour.torch_version(tmp_path) == ('2.13.0+cu130', '13.0')
    (packages / 'version.py').write_text(text.format('+cpu', 'None'))
    assert flavour.torch_version(tmp_path) == ('2.13.0+cpu', None)


def test_installed_torch_is_read_as_it_says_of_itself(load):
    import torch

    found = load('flavour').torch_version(Path(sys.prefix))
    assert found == (torch.__version__, torch.version.cuda)


@pytest.mark.parametrize(
    ('device', 'env', 'expected'),
    [
        ('nvidia0', {}, True),
        ('nvidia0', {'CUDA_VISIBLE_DEVICES': '0,1'}, True),
        ('nvidia0', {'CUDA_VISIBLE_DEVICES': ''}, False),
        ('nvidia0', {'CUDA_VISIBLE_DEVICES': '-1'}, False),
        ('nvidiactl', {}, False),
        ('null', {}, False),
        ('null', {'FORCE_CUDA': '1'}, True),
    ],
)
def test_gpu_is_seen_by_its_device_file(load, tmp_path, device, env, expected):
    (tmp_path / device).touch()
    assert load('flavour').gpu_visible(env, tmp_path) is expected


def fake_nvcc(folder: Path, release: str) -> Path:
    nvcc = folder / 'bin' / 'nvcc'
    nvcc.parent.mkdir(parents=True)
    text = f'Cuda compilation tools, release {release}, V{release}.48'
    nvcc.write_text(f'#!/bin/sh\necho "{text}"\n')
    nvcc.chmod(0o755)
    return nvcc


def test_nvcc_is_taken_from_cuda_home_then_from_path(load, tmp_path):
    flavour = load('flavour')
    home = fake_nvcc(tmp_path / 'home', '13.0')
    other = fake_nvcc(tmp_path / 'other', '13.0')
    path = str(other.parent)
    found = flavour.find_nvcc({'CUDA_HOME': str(tmp_path / 'home')})
    assert found == home
    assert flavour.find_nvcc({'PATH': path}) == other


def test_gpu_without_nvcc_says_what_to_install(load):
    flavour = load('flavour')
    with pytest.raises(flavour.SetupError) as raised:
        flavour.check_nvcc(None, '13.0')
    for word in ('no nvcc', 'CUDA toolkit 13.0', 'MEGDET_WHEELHOUSE'):
        assert word in str(raised.value)


def test_nvcc_must_be_of_torchs_major_version(load, tmp_path):
    flavour = load('flavour')
    flavour.check_nvcc(fake_nvcc(tmp_path / 'a', '13.2'), '13.0')
    old = fake_nvcc(tmp_path / 'b', '12.8')
    with pytest.raises(flavour.SetupError, match=r'CUDA 12\.8, torch of'):
        flavour.check_nvcc(old, '13.0')


def test_architectures_are_the_users_if_given(load):
    given = {'TORCH_CUDA_ARCH_LIST': '8.0;9.0'}
    assert load('flavour').arch_list(given) == '8.0;9.0'


GCC_LOG = """\
[1/77] g++ -c a.cpp
a.cpp:3:1: warning: unused parameter 'error' [-Wunused]
[2/77] g++ -c b.cpp
FAILED: b.o
g++ -c b.cpp -o b.o
b.cpp: In function 'int f()':
b.cpp:12:10: error: 'nothing' was not declared in this scope
   12 |   return nothing;
      |          ^~~~~~~
[3/77] g++ -c c.cpp
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File "setup.py", line 448, in <module>
RuntimeError: Error compiling objects for extension
error: command 'ninja' failed with exit status 1
"""


@pytest.mark.parametrize(
    ('log', 'expected'),
    [
        (
            GCC_LOG,
            "b.cpp:12:10: error: 'nothing' was not declared in this scope\n"
            '   12 |   return nothing;\n'
            '      |          ^~~~~~~',
        ),
        (
            'In file included from a.cpp:1:\n'
            'x.hpp:3:10: fatal error: Python.h: No such file or directory\n'
            'compilation terminated.\n',
            'x.hpp:3:10: fatal error: Python.h: No such file or directory',
        ),
        (
            'g++: fatal error: Killed signal terminated program cc1plus\n'
            'RuntimeError: Error compiling objects for extension\n',
            'g++: fatal error: Killed signal terminated program cc1plus',
        ),
        (
            'nms.cu(12): error: identifier "x" is undefined\n'
            'RuntimeError: Error compiling objects for extension\n',
            'nms.cu(12): error: identifier "x" is undefined',
        ),
        (
            "ld: a.o: undefined reference to `f()'\n"
            'collect2: error: ld returned 1 exit status\n',
            "ld: a.o: undefined reference to `f()'",
        ),
        (
            'running bdist_wheel\n'
            "ModuleNotFoundError: No module named 'pkg_resources'\n",
            "ModuleNotFoundError: No module named 'pkg_resources'",
        ),
        (
            "subprocess.CalledProcessError: Command 'c++ -v' returned 1.\n",
            "subprocess.CalledProcessError: Command 'c++ -v' returned 1.",
        ),
        (
            'ninja: build stopped: interrupted by user.\n'
            'RuntimeError: Error compiling objects for extension\n',
            'ninja: build stopped: interrupted by user.',
        ),
        ('one\n\ntwo\n', 'one\ntwo'),
    ],
)
def test_last_error_is_the_cause(load, log, expected):
    assert load('compile_log').last_error(log) == expected


def test_progress_is_read_from_ninjas_lines(load):
    progress = load('compile_log').progress
    assert progress('  [49/77] /tmp/cxx -MMD -c a.cpp\n') == (49, 77)
    assert progress('note: array [1/2] of') is None


def test_lines_of_progress_estimate_from_the_files_alone(load):
    build = load('build_mmcv')
    text = io.StringIO()
    now = iter([0, 30, 35, 50, 71])
    report = build.Report(
        build.Console(file=text, width=80), clock=lambda: next(now)
    )
    for done in (1, 2, 21, 77):
        report.update(done, 77)
    assert text.getvalue().splitlines() == [
        'compiling mmcv: 1/77',
        # 20 files in 20 s, 56 to go; the header's 30 s do not count.
        'compiling mmcv: 21/77, about 56 s left',
        'compiling mmcv: 77/77, about 0 s left',
    ]


def test_failed_build_gives_last_error_and_log(load, tmp_path):
    build = load('build_mmcv')
    source = tmp_path / 'source'
    source.mkdir()
    (source / 'setup.py').write_text(
        'print("b.cpp:1:2: error: no such thing")\nraise SystemExit(1)\n'
    )
    log = tmp_path / 'build.log'
    with pytest.raises(build.SetupError) as raised:
        build.compile_wheel(source, tmp_path / 'dist', {}, log)
    assert 'b.cpp:1:2: error: no such thing' in str(raised.value)
    assert str(log) in str(raised.value)


def test_build_environment_forces_ops_and_keeps_the_users_jobs(
    load, monkeypatch, tmp_path
):
    build = load('build_mmcv')
    monkeypatch.setenv('MAX_JOBS', '3')
    monkeypatch.setenv('MMCV_WITH_OPS', '0')
    monkeypatch.setenv('FORCE_CUDA', '1')
    monkeypatch.setenv('PYTHONPATH', 'elsewhere')
    env = build.build_environment('g++', tmp_path, None)
    assert env['MMCV_WITH_OPS'] == '1'
    assert env['MAX_JOBS'] == '3'
    assert env['FORCE_CUDA'] == '0'
    assert 'PYTHONPATH' not in env
    env = build.build_environment('g++', tmp_path, '9.0')
    assert (env['FORCE_CUDA'], env['TORCH_CUDA_ARCH_LIST']) == ('1', '9.0')


def test_compiler_is_the_users_or_a_clear_error(load, tmp_path):
    build = load('build_mmcv')
    assert build.find_compiler({'CXX': 'g++ -fopenmp'}) == 'g++ -fopenmp'
    with pytest.raises(build.SetupError, match='CXX=nothing-here'):
        build.find_compiler({'CXX': 'nothing-here'})


def test_no_compiler_names_the_remedy(load, monkeypatch, tmp_path):
    build = load('build_mmcv')
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(build.SetupError, match='MEGDET_WHEELHOUSE'):
        build.find_compiler({})
