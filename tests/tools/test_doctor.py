# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/doctor.py on a good machine and on a broken one."""

import re
import sys

import doctor as doctor_tool
import pytest
from checks import machine, packages
from checks.report import FAIL, PASS, WARN, Report

from mmdet_megdet.demo_data import generate_shapes
from tests.tools.checks.findings import levels, shown
from tests.tools.command import ROOT, TOOLS, run

CONFIG = ROOT / 'configs' / 'megdet' / 'shapes_r18_fpn.py'


def test_a_healthy_machine(tmp_path, monkeypatch, capsys):
    generate_shapes(tmp_path, train=24, val=4, size=(128, 128))
    monkeypatch.setenv('SHAPES_ROOT', str(tmp_path))
    assert doctor_tool.main([str(CONFIG), '--gpus', '2']) == 0
    output = capsys.readouterr().out
    assert not shown(output, FAIL)
    good = shown(output, PASS)
    assert good['mmcv ops'] == ['work']
    # R18: 20 layers, FPN: 8.
    assert good['BatchNorm'] == ['28 layers synchronise']
    assert re.search(
        r'_train\.json: 24 of 24 images are used, (\d+) of \1 annotations\.',
        good['annotations (train)'][0],
    )
    assert good['images (train)'][0].startswith('24 of 24 read')
    assert good['num_classes'] == ['5, as the data set has']
    assert 'images are used' in good['annotations (val, test)'][0]
    assert 'images at once: 8, accumulation: 1' in good['batch plan'][0]
    assert 'epoch: 3 updates' in good['batch plan'][0]


@pytest.mark.slow
def test_a_broken_machine(tmp_path):
    """Everything at once, and still each thing is said."""
    stub = tmp_path / 'mmcv'
    stub.mkdir()
    (stub / '__init__.py').write_text("__version__ = '2.1.0'\n")
    (stub / 'ops.py').write_text('from mmcv import _ext\n')
    (tmp_path / 'torchvision.py').write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    command = f'{sys.executable} {TOOLS / "doctor.py"} {CONFIG} --gpus 2'
    done = run(
        *('bash', '-c', f'ulimit -n 256; exec {command}'),
        cold=True,
        SHAPES_ROOT='/nowhere',
        PYTHONPATH=f'{tmp_path}:{ROOT}',
    )
    assert done.returncode == 1
    bad = shown(done.stdout, FAIL)
    assert bad['torchvision'] == [
        'import: RuntimeError: operator torchvision::nms does not exist'
    ]
    assert 'do not work' in bad['mmcv ops'][0]
    assert 'hard limit is 256' in bad['open files'][0]
    assert 'model' in bad  # it needs the ops
    (text,) = bad['annotations (train)']
    assert text.startswith('there is no annotation file /nowhere/')


def test_what_cannot_be_checked(capsys):
    report = Report()
    doctor_tool.check_config(report, doctor_tool.parse_args(['no/such.py']))
    with report.checking('this'):
        raise ZeroDivisionError('division by zero')
    assert report.close() == 1
    output = capsys.readouterr().out
    config, other = shown(output, FAIL).values()
    assert 'there is no config file no/such.py' in config[0]
    assert other == [
        'could not be checked: ZeroDivisionError: division by zero'
    ]
    assert '-> Mend what this says' in output
    assert '0 PASS, 0 WARN, 2 FAIL' in output


def test_limits():
    found = map(machine.check_open_files, (256, 2048, 4096, -1))
    assert levels(found) == [FAIL, WARN, PASS, PASS]
    found = map(machine.check_shared_memory, (64_000_000, 2_000_000_000))
    assert levels(found) == [WARN, PASS]


def test_ranges_are_those_of_the_metadata():
    metadata = (ROOT / 'pyproject.toml').read_text()
    extra = metadata.split('openmmlab = [')[1].split(']')[0]
    assert dict(re.findall(r"'(\w+)([^']*)'", extra)) == packages.RANGES


def test_the_forks_numbers_count_for_the_forks(tmp_path, monkeypatch):
    (tmp_path / 'forkedone.py').write_text("__version__ = '2.3.6'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(packages.RANGES, 'forkedone', '<2.2.0')
    monkeypatch.setitem(packages.FORK_RANGES, 'forkedone', '>=2.3.6')
    for have, level in (({}, FAIL), ({'onedl-forkedone': '2.3.6'}, PASS)):
        monkeypatch.setattr(packages, 'installed', have.get)
        finding = packages.import_package('forkedone')
        assert finding.level == level
        assert '2.3.6' in finding.text


def test_a_package_that_is_not_installed():
    finding = packages.import_package('no_such_package')
    assert (finding.level, finding.text) == (FAIL, 'not installed')
