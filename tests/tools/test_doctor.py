# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/doctor.py on a good machine and on a broken one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mmdet_megdet.demo_data import generate_shapes
from tests.tools.checks.findings import shown
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


def test_a_healthy_machine(shapes, monkeypatch, capsys):
    monkeypatch.setenv('SHAPES_ROOT', str(shapes))
    assert doctor_tool.main([str(CONFIG), '--gpus', '2']) == 0
    output = capsys.readouterr().out
    assert not shown(output, FAIL)
    good = shown(output, PASS)
    assert good['mmcv ops'] == ['work']
    # R18: 20 layers, FPN: 8.
    assert good['BatchNorm'] == ['28 layers synchronise']
    assert f'{IMAGES} of {IMAGES} images' in good['annotations (train)'][0]
    assert good['images (train)'][0].startswith(f'{IMAGES} of {IMAGES} read')
    assert 'images are used' in good['annotations (val, test)'][0]
    assert 'images at once: 8, accumulation: 1' in good['batch plan'][0]
    assert 'epoch: 3 updates' in good['batch plan'][0]


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
    command = f'{sys.executable} {TOOLS / "doctor.py"} {CONFIG} --gpus 2'
    done = subprocess.run(
        ['bash', '-c', f'ulimit -n 256; exec {command}'],
        env=environment(
            SHAPES_ROOT=str(root),
            PYTHONPATH=f'{stub.parent}:{ROOT}',
            TORCH_DISTRIBUTED_DEBUG='DETAIL',
        ),
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    bad = shown(done.stdout, FAIL)
    assert bad['torchvision'] == [
        'import: RuntimeError: operator torchvision::nms does not exist'
    ]
    assert 'do not work' in bad['mmcv ops'][0]
    assert 'hard limit is 256' in bad['open files'][0]
    assert 'model' in bad  # it needs the ops
    assert [text.split(':')[0] for text in bad['images (train)']] == [
        f'1 of {IMAGES} are not there',
        f'1 of {IMAGES} differ in size from the annotation file',
    ]
    (text,) = bad['annotations (val, test)']
    assert 'instances_val.json is cut off, after 12 bytes' in text
    odd = shown(done.stdout, WARN)
    assert 'TORCH_DISTRIBUTED_DEBUG' in odd['environment variables'][0]
    assert '1 annotation(s) have a box without area' in odd['boxes (train)'][0]


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
