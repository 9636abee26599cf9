# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which files a config reads, of which classes, also without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mmdet.datasets import CocoDataset

import mmdet_megdet
from mmdet_megdet.annotations import configured, judge
from mmdet_megdet.errors import DataError
from mmdet_megdet.faults.data import check_annotation_files
from tests.annotations.configs import config_of, content_of, write


def first_use(cfg):
    uses, _, verdicts = configured(cfg, ('train',))
    return uses[0] if uses else verdicts[0]


@pytest.fixture
def cfg(tmp_path):
    write(tmp_path, content_of(), content_of())
    return config_of(tmp_path)


@pytest.mark.parametrize('scope', ['mmdet', 'mmengine', None])
def test_classes_of_the_type(cfg, scope):
    """However the type is written; the root registry does not know it."""
    dataset = cfg.train_dataloader.dataset
    del dataset['metainfo']
    cfg.default_scope = scope
    for kind in ('mmdet.CocoDataset', CocoDataset):
        dataset.type = kind
        assert first_use(cfg).classes == CocoDataset.METAINFO['classes']
    dataset.type = 'CocoDataset'
    if scope == 'mmdet':
        assert first_use(cfg).classes == CocoDataset.METAINFO['classes']
    else:  # MMEngine would not find it either
        assert "there is no data set 'CocoDataset'" in first_use(cfg).text


def test_classes_in_a_file(cfg, tmp_path):
    names = tmp_path / 'classes.txt'
    names.write_text('box\ndisc\n')
    cfg.train_dataloader.dataset.metainfo.classes = str(names)
    assert first_use(cfg).classes == ('box', 'disc')
    assert all(v.level == 'sound' for v in judge(cfg).verdicts)


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (dict(backend_args=dict(backend='petrel')), 'not a file on a disk'),
        (dict(type='LVISV1Dataset'), 'does not read its file as'),
    ],
)
def test_what_is_not_judged_is_said(cfg, change, words):
    cfg.train_dataloader.dataset.update(change)
    verdict = first_use(cfg)
    assert verdict.level == 'notable'
    assert 'is not checked' in verdict.text
    assert words in verdict.text


def test_images_without_labels_beside_others(cfg, tmp_path):
    """As for semi-supervised training: refused, unless it is meant."""
    (tmp_path / 'more.json').write_text(
        json.dumps(content_of() | dict(annotations=[]))
    )
    inner = cfg.train_dataloader.dataset
    more = dict(inner, ann_file='more.json', filter_cfg=None)
    cfg.train_dataloader.dataset = dict(
        type='ConcatDataset', datasets=[inner, more]
    )
    with pytest.raises(DataError, match=r'more\.json: not one of its 0'):
        check_annotation_files(cfg)
    (verdict,) = check_annotation_files(cfg, mode='warn')
    assert verdict.level == 'misleading'


def test_images_that_are_only_predicted(cfg, tmp_path):
    """As COCO's test-dev, of which the objects are not known."""
    content = content_of()
    del content['annotations']
    (tmp_path / 'val.json').write_text(json.dumps(content))
    with pytest.raises(DataError, match=r'val\.json: not one of its 0'):
        check_annotation_files(cfg)
    cfg.val_evaluator.format_only = True
    assert check_annotation_files(cfg) == []


def test_where_mmdet_cannot_be_imported(cfg, monkeypatch):
    """Of other types than CocoDataset nothing is said."""
    monkeypatch.setitem(sys.modules, 'mmdet.datasets', None)
    assert first_use(cfg).classes == ('box', 'disc')
    cfg.train_dataloader.dataset.type = 'CityscapesDataset'
    assert 'is not checked: ModuleNotFoundError' in first_use(cfg).text


def test_concatenated_data_sets_of_another_order(cfg, tmp_path):
    content = content_of()
    content['categories'].reverse()
    (tmp_path / 'other.json').write_text(json.dumps(content))
    inner = cfg.train_dataloader.dataset
    other = dict(
        inner, ann_file='other.json', metainfo=dict(classes=('disc', 'box'))
    )
    cfg.train_dataloader.dataset = dict(
        type='ConcatDataset', datasets=[inner, other]
    )
    (text,) = [v.text for v in judge(cfg).verdicts if v.level == 'misleading']
    assert text == (
        f'{tmp_path}/other.json: the categories are not those of '
        f"{tmp_path}/train.json in their order: label 0 is 'disc' in the file "
        f"and 'box' in {tmp_path}/train.json, label 1 is 'box' in the file "
        f"and 'disc' in {tmp_path}/train.json."
    )


def test_ids_that_two_evaluated_data_sets_share(cfg, tmp_path):
    content = content_of()
    for image in content['images']:
        image['file_name'] = f'other_{image["file_name"]}'
    (tmp_path / 'other.json').write_text(json.dumps(content))
    inner = cfg.val_dataloader.dataset
    cfg.val_dataloader.dataset = dict(
        type='ConcatDataset',
        datasets=[inner, dict(inner, ann_file='other.json')],
    )
    texts = [v.text for v in judge(cfg).verdicts if v.level == 'misleading']
    assert any(
        'has others under the ids of 8 image(s)' in text for text in texts
    )


def test_without_torch_and_mmengine(cfg, tmp_path):
    """The package alone judges; the config is one of plain dicts."""
    plain = json.dumps(cfg.to_dict())
    program = f"""
import json, sys, types
for name in ('torch', 'mmengine', 'mmdet', 'mmcv'):
    sys.modules[name] = None
package = types.ModuleType('mmdet_megdet')
package.__path__ = {mmdet_megdet.__path__!r}
sys.modules['mmdet_megdet'] = package
from mmdet_megdet.annotations import judge, training_epoch
cfg = json.loads({plain!r})
judgement = judge(cfg)
print([v.level for v in judgement.verdicts])
print(training_epoch(cfg, judgement))
"""
    done = subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path('/'),
    )
    assert done.stdout.splitlines() == [
        "['sound', 'sound']",
        'Epoch(images=8, mixed=False)',
    ], done.stderr
