# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which files a config reads, of which classes, also without torch."""

import json
import subprocess
import sys

import pytest
from mmdet.datasets import CocoDataset

import mmdet_megdet
from mmdet_megdet.annotations import configured, judge
from tests.annotations.configs import CLASSES, config_of, content_of, write


def first_use(cfg):
    uses, _, verdicts = configured(cfg, ('train',))
    return uses[0] if uses else verdicts[0]


@pytest.fixture
def cfg(tmp_path):
    write(tmp_path, train=content_of(), val=content_of())
    return config_of(tmp_path)


def test_where_the_classes_are(cfg, tmp_path):
    """In the config, a file, or a type, however that is written."""
    dataset = cfg.train_dataloader.dataset
    names = tmp_path / 'classes.txt'
    names.write_text('\n'.join(CLASSES))
    dataset.metainfo.classes = str(names)
    assert first_use(cfg).classes == CLASSES
    del dataset['metainfo']
    for cfg.default_scope, kinds in (
        ('mmdet', ('CocoDataset', 'mmdet.CocoDataset', CocoDataset)),
        (None, ('mmdet.CocoDataset',)),
    ):
        for dataset.type in kinds:
            assert first_use(cfg).classes == CocoDataset.METAINFO['classes']
    dataset.type = 'CocoDataset'  # MMEngine would not find it either
    assert "there is no data set 'CocoDataset'" in first_use(cfg).text


def test_what_is_not_judged_is_said(cfg, monkeypatch):
    dataset = cfg.train_dataloader.dataset
    dataset.backend_args = dict(backend='petrel')
    verdict = first_use(cfg)
    assert verdict.level == 'notable'
    assert 'is not checked: it is not a file on a disk' in verdict.text
    del dataset['backend_args']
    own = type('Own', (CocoDataset,), dict(parse_data_info=None))
    for dataset.type in (own, 'LVISV1Dataset'):
        assert 'is not checked: it does not read its' in first_use(cfg).text
    # Without mmdet only its CocoDataset is known.
    monkeypatch.setitem(sys.modules, 'mmdet.datasets', None)
    assert 'is not checked: ModuleNotFoundError' in first_use(cfg).text
    dataset.type = 'CocoDataset'
    assert first_use(cfg).classes == CLASSES


@pytest.mark.parametrize('role', ['train', 'val'])
def test_concatenated_data_sets(cfg, tmp_path, role):
    """With labels in another order; and ids that evaluation mixes up."""
    content = content_of()
    content['categories'].reverse()
    for image in content['images']:
        image['file_name'] = f'other_{image["file_name"]}'
    write(tmp_path, other=content)
    loader = cfg[f'{role}_dataloader']
    metainfo = dict(classes=('disc', 'box'))
    other = dict(loader.dataset, ann_file='other.json', metainfo=metainfo)
    loader.dataset = dict(
        type='ConcatDataset', datasets=[loader.dataset, other]
    )
    verdicts = judge(cfg).verdicts
    labels, *ids = [v.text for v in verdicts if v.level == 'misleading']
    assert labels.startswith(
        f'{tmp_path}/other.json: the categories are not those of '
        f"{tmp_path}/train.json in their order: label 0 is 'disc' in the file "
        f"and 'box' in {tmp_path}/train.json, label 1 is 'box' in the file "
    )
    assert len(ids) == (role == 'val')
    told = 'has others under the ids of 8 image(s): id 0 (other_0.jpg)'
    assert all(told in text for text in ids)


def test_without_torch_and_mmengine(cfg):
    """The package alone judges; the config is one of plain dicts."""
    program = f"""
import json, sys, types
for name in ('torch', 'mmengine', 'mmdet', 'mmcv'):
    sys.modules[name] = None
package = types.ModuleType('mmdet_megdet')
package.__path__ = {mmdet_megdet.__path__!r}
sys.modules['mmdet_megdet'] = package
from mmdet_megdet.annotations import judge, training_epoch
cfg = json.loads({json.dumps(cfg.to_dict())!r})
judgement = judge(cfg)
print([v.level for v in judgement.verdicts])
print(training_epoch(cfg, judgement))
"""
    command = (sys.executable, '-c', program)
    output = subprocess.check_output(command, text=True, cwd='/')
    assert output.splitlines() == [
        "['sound', 'sound']",
        'Epoch(images=8, mixed=False)',
    ]
