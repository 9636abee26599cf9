# Copyright (c) mmdet_megdet contributors. All rights reserved.
import json
import subprocess
import sys

import pytest

from mmdet_megdet.demo_data import main


def info(out, split):
    path = out / 'annotations' / f'instances_{split}.json'
    return json.loads(path.read_text())['info']


def test_module_runs_without_warnings(tmp_path):
    command = [sys.executable, '-m', 'mmdet_megdet.demo_data']
    command += [str(tmp_path / 'out'), '--train', '3', '--val', '2']
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0
    assert 'RuntimeWarning' not in done.stderr
    assert '3/3' in done.stdout
    assert len(list((tmp_path / 'out').rglob('*.png'))) == 5
    assert info(tmp_path / 'out', 'val')['vary_light'] is False


@pytest.mark.parametrize(
    ('text', 'size'), [('48', (48, 48)), ('64x40', (64, 40))]
)
def test_options(tmp_path, text, size):
    options = ['--size', text, '--seed', '7', '--vary-light']
    assert not main([str(tmp_path), '--train', '2', '--val', '1', *options])
    found = info(tmp_path, 'train')
    assert (found['width'], found['height']) == size
    assert found['seed'] == 7
    assert found['images'] == 2
    assert found['vary_light'] is True


@pytest.mark.parametrize('text', ['', '12a', '64x', '64x48x3', '-64', '6.5'])
def test_bad_size(tmp_path, text, capsys):
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path), f'--size={text}'])
    assert error.value.code == 2
    assert 'is neither a side such as 128' in capsys.readouterr().err


def test_errors_are_one_line(tmp_path, capsys):
    assert main([str(tmp_path), '--train', '0']) == 1
    captured = capsys.readouterr().err
    assert captured.startswith('error: train=0: the number of images')
    assert captured.count('\n') == 1


def test_out_is_a_file(tmp_path, capsys):
    (tmp_path / 'file').touch()
    assert main([str(tmp_path / 'file')]) == 1
    assert str(tmp_path / 'file') in capsys.readouterr().err
