# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/doctor.py on a good machine and on a broken one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mmdet_megdet.demo_data import generate_shapes
from tests.tools.command import PATIENCE, ROOT, TOOLS, environment, start

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


def doctor(*arguments, limit=None, cold=False, **settings):
    """Exit status and report, as JSON."""
    command = [sys.executable, TOOLS / 'doctor.py', *arguments, '--json']
    if limit:
        command = [
            'bash',
            '-c',
            f'ulimit -n {limit}; exec "$@"',
            '-',
            *command,
        ]
    done = start(
        *command,
        env=environment(**settings),
        cold=cold,
        stdout=subprocess.PIPE,
        text=True,
    )
    # Standard output is the JSON and nothing else.
    output, _ = done.communicate(timeout=PATIENCE)
    return done.returncode, json.loads(output)


def found(report, check):
    """Findings of a check as (level, text)."""
    return [
        (f['level'], f['text'])
        for f in report['findings']
        if f['check'] == check
    ]


@pytest.mark.slow
def test_a_healthy_machine(shapes, tmp_path):
    status, report = doctor(
        *(CONFIG, '--gpus', 2, '--work-dir', tmp_path),
        cold=True,
        SHAPES_ROOT=str(shapes),
    )
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
    status, report = doctor(
        CONFIG,
        '--gpus',
        2,
        limit=256,
        SHAPES_ROOT=str(root),
        PYTHONPATH=f'{stub.parent}:{ROOT}',
        NCCL_SOCKET_TIMEOUT='600',
        TORCH_NCCL_BLOCKNG_WAIT='1',
    )
    assert (status, report['ok']) == (1, False)
    assert found(report, 'torchvision') == [
        (
            FAIL,
            'import: RuntimeError: operator torchvision::nms does not exist',
        )
    ]
    ((level, text),) = found(report, 'mmcv ops')
    assert level == FAIL
    assert 'do not work' in text
    variables_found = found(report, 'environment variables')
    assert [level for level, _ in variables_found] == [WARN, WARN]
    assert 'NCCL has no variable NCCL_SOCKET_TIMEOUT' in variables_found[0][1]
    assert 'no variable TORCH_NCCL_BLOCKNG_WAIT' in variables_found[1][1]
    remedies = ' '.join(f['remedy'] for f in report['findings'])
    assert 'Did you mean TORCH_NCCL_BLOCKING_WAIT' in remedies
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


def test_a_config_that_cannot_be_read(capsys, monkeypatch):
    report = Report()
    monkeypatch.setattr(sys, 'argv', ['doctor.py', 'no/such.py'])
    doctor_tool.check_config(report, doctor_tool.parse_args())
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
