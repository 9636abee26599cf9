# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/doctor.py on a good machine and on a broken one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mmdet_megdet.demo_data import generate_shapes
from tests.tools.command import PATIENCE, ROOT, TOOLS, environment

sys.path.insert(0, str(TOOLS))  # as for a script there

import doctor as doctor_tool
from checks.report import FAIL, PASS, WARN, Report

CONFIG = ROOT / 'configs' / 'megdet' / 'shapes_r18_fpn.py'
IMAGES = 24


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    """The generated data set, not to be changed."""
    root = tmp_path_factory.mktemp('shapes')
    generate_shapes(root, train=IMAGES, val=4, size=(128, 128))
    return root


def found(report, check):
    """Findings of a check as (level, text)."""
    return [
        (f['level'], f['text'])
        for f in report['findings']
        if f['check'] == check
    ]


def test_a_healthy_machine(shapes, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('SHAPES_ROOT', str(shapes))
    options = ['--gpus', '2', '--work-dir', str(tmp_path), '--json']
    status = doctor_tool.main([str(CONFIG), *options])
    # Standard output is the JSON and nothing else.
    report = json.loads(capsys.readouterr().out)
    assert (status, report['ok'], report['counts'][FAIL]) == (0, True, 0)
    texts = {f['check']: f['text'] for f in report['findings']}
    assert texts['mmcv ops'].startswith('work; ')
    # R18: 20 layers, FPN: 8.
    assert texts['BatchNorm'] == '28 layers synchronise'
    assert f'{IMAGES} of {IMAGES} images' in texts['annotations (train)']
    assert texts['images (train)'].startswith(f'{IMAGES} of {IMAGES} read')
    assert 'images are used' in texts['annotations (val, test)']
    assert 'images at once: 8, accumulation: 1' in texts['batch plan']
    assert 'epoch: 3 updates' in texts['batch plan']
    assert all(f['remedy'] for f in report['findings'] if f['level'] != PASS)


@pytest.mark.slow
def test_a_broken_machine(shapes, tmp_path):
    """Everything at once, and still each thing is said."""
    file = shapes / 'annotations' / 'instances_train.json'
    content = json.loads(file.read_text())
    stub = tmp_path / 'stub' / 'mmcv'
    stub.mkdir(parents=True)
    (stub / '__init__.py').write_text("__version__ = '2.1.0'\n")
    (stub / 'ops.py').write_text('from mmcv import _ext\n')
    torchvision = stub.parent / 'torchvision.py'
    torchvision.write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    root = tmp_path / 'data'
    (root / 'annotations').mkdir(parents=True)
    (root / 'images').symlink_to(shapes / 'images')
    content['annotations'][0]['bbox'][2] = 0
    content['images'][0]['file_name'] = 'gone.png'
    content['images'][1]['width'] += 1
    (root / 'annotations' / 'instances_train.json').write_text(
        json.dumps(content)
    )
    (root / 'annotations' / 'instances_val.json').write_text('{"images": [')
    tool, options = TOOLS / 'doctor.py', '--gpus 2 --json'
    done = subprocess.run(
        [
            'bash',
            '-c',
            f'ulimit -n 256; exec {sys.executable} {tool} {CONFIG} {options}',
        ],
        env=environment(
            SHAPES_ROOT=str(root),
            PYTHONPATH=f'{stub.parent}:{ROOT}',
            TORCH_DISTRIBUTED_DEBUG='DETAIL',
        ),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report['ok']) == (1, False)
    assert found(report, 'torchvision') == [
        (
            FAIL,
            'import: RuntimeError: operator torchvision::nms does not exist',
        )
    ]
    ((level, text),) = found(report, 'mmcv ops')
    assert level == FAIL
    assert 'do not work' in text
    ((level, text),) = found(report, 'environment variables')
    assert level == WARN
    assert text.startswith('TORCH_DISTRIBUTED_DEBUG=DETAIL: every collective')
    assert found(report, 'open files') == [
        (FAIL, 'soft / hard limit 256 / 256')
    ]
    ((level, _),) = found(report, 'model')  # it needs the ops
    assert level == FAIL
    ((level, text),) = found(report, 'boxes (train)')
    assert level == WARN
    assert '1 annotation(s) have a box without area' in text
    assert [
        text.split(':')[0] for _, text in found(report, 'images (train)')
    ] == [
        f'1 of {IMAGES} are not there',
        f'1 of {IMAGES} differ in size from the annotation file',
    ]
    ((level, text),) = found(report, 'annotations (val, test)')
    assert level == FAIL
    assert 'instances_val.json is cut off, after 12 bytes' in text


def test_a_config_that_cannot_be_read(capsys):
    report = Report()
    doctor_tool.check_config(report, doctor_tool.parse_args(['no/such.py']))
    (finding,) = report.findings
    assert finding.level == FAIL
    assert 'there is no config file no/such.py' in finding.text
    assert report.close() == 1
    shown = capsys.readouterr().out
    assert 'FAIL  config: cannot be read' in shown
    assert '-> Mend what this says' in shown
    assert '0 PASS, 0 WARN, 1 FAIL' in shown


def test_a_check_that_breaks_down_is_a_finding():
    report = Report(silent=True)
    report.run('this', lambda: 1 / 0)
    assert report.findings[0].text == (
        'could not be checked: ZeroDivisionError: division by zero'
    )
    assert report.close() == 1
