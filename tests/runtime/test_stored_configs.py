# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Nothing in a checkpoint is executed, whoever reads it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.infer import BaseInferencer

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.runtime import trust_checkpoints
from tests.data.faults_run import train

# Each leaves a file if Config.fromstring meets it.
PROOF = "__import__('pathlib').Path('proof').touch()"
TEXTS = {
    'call': PROOF,
    'call in a value': f'gpu_ids = [{PROOF}]',
    'base file': "_base_ = 'evil.py'",
    'import': "custom_imports = dict(imports=['evil'])",
    'substitution': 'a = "{{ $NONE:x }}"\n' + PROOF,
}
PLACES = [
    ('meta', 'config'),
    ('meta', 'cfg'),
    ('message_hub', 'runtime_info', 'cfg'),
    ('message_hub', 'runtime_info', 'config'),
]


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory) -> dict:
    """What a run of one epoch has written."""
    folder = tmp_path_factory.mktemp('trained')
    train(folder, train_cfg__max_epochs=1)
    return torch.load(folder / 'epoch_1.pth')


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / 'evil.py').write_text(PROOF)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(folder: Path, checkpoint: dict, value, *places: tuple) -> str:
    changed = copy.deepcopy(checkpoint)
    for *parts, key in places:
        part = changed
        for name in parts:
            part = part[name]
        part[key] = value
    path = folder / 'crafted.pth'
    torch.save(changed, path)
    return str(path)


def resume(folder: Path, path: str, **settings):
    settings |= dict(train_cfg__max_epochs=1, resume=True, load_from=path)
    return train(folder, **settings)


@pytest.mark.parametrize('text', TEXTS.values(), ids=TEXTS)
def test_texts_are_not_executed(folder, checkpoint, text):
    path = write(folder, checkpoint, text, *PLACES)
    runner = resume(folder, path)
    assert runner.epoch == 1
    # The run's own, not the checkpoint's.
    assert runner.message_hub.get_info('cfg') == runner.cfg.pretty_text
    with pytest.raises(ValueError, match='Cannot find the config'):
        BaseInferencer._init_model(None, ConfigDict(), path)
    assert not (folder / 'proof').exists()


def test_not_even_where_the_file_is_trusted(folder, checkpoint, monkeypatch):
    # setenv first, so that monkeypatch takes the variable back afterwards.
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '0')
    config = Config.fromstring('a = 1', '.py')
    path = write(folder, checkpoint, config, *PLACES)
    with pytest.raises(CheckpointError, match=r'mmengine\.config'):
        resume(folder, path)
    trust_checkpoints()
    assert resume(folder, path).epoch == 1
    path = write(folder, checkpoint, PROOF, *PLACES)
    assert resume(folder, path).epoch == 1
    assert not (folder / 'proof').exists()


def of_mmdet_2(checkpoint: dict) -> dict:
    """What MMDetection 2.x would have written."""
    meta = dict(
        epoch=1,
        iter=4,
        mmdet_version='2.28.0',
        CLASSES=('noise',),
        config='gpu_ids = range(0, 8)\n' + PROOF,
    )
    return {
        'meta': meta,
        **{key: checkpoint[key] for key in ('state_dict', 'optimizer')},
    }


CONTENTS = {
    'state_dict alone': lambda c: c['state_dict'],
    'weights': lambda c: dict(state_dict=c['state_dict']),
    'published': lambda c: {k: c[k] for k in ('meta', 'state_dict')},
    'empty meta': lambda c: dict(meta={}, state_dict=c['state_dict']),
    'MMDetection 2.x': of_mmdet_2,
}


@pytest.mark.parametrize('content', CONTENTS.values(), ids=CONTENTS)
def test_no_training_to_resume(folder, checkpoint, content):
    path = write(folder, content(checkpoint), None)
    with pytest.raises(CheckpointError, match=r"it has no '\w+'") as error:
        # By the loader: a stock Runner that imports this package is told too.
        resume(folder, path, default_hooks__resume_report=None)
    assert f'--cfg-options load_from={path}' in str(error.value)
    assert 'auto_scale_lr' not in str(error.value)
    # What is meant instead.
    train(folder, train_cfg__max_epochs=1, load_from=path)
    assert not (folder / 'proof').exists()
