# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What mim and MMEngine read about the configs: all of them, nothing else."""

from __future__ import annotations

import pytest
import yaml
from mmengine.config import Config

from tests.tools.command import ROOT


def load(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding='utf-8'))


def metafile() -> dict:
    (name,) = load('model-index.yml')['Import']
    return load(name)


def test_every_config_is_listed_once():
    listed = [model['Config'] for model in metafile()['Models']]
    configs = (ROOT / 'configs' / 'megdet').glob('*.py')
    there = [path.relative_to(ROOT).as_posix() for path in configs]
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize(
    'model', metafile()['Models'], ids=lambda m: m['Name']
)
def test_entry_says_what_the_config_says(model):
    cfg = Config.fromfile(ROOT / model['Config'])
    assert model['Name'] == 'megdet_' + (ROOT / model['Config']).stem
    assert model['In Collection'] == 'MegDet'
    metadata = model['Metadata']
    assert metadata['Epochs'] == cfg.train_cfg.max_epochs
    total = cfg.default_hooks.total_batch.total_batch_size
    assert metadata['Batch Size'] == total
    detector = metadata['Architecture'][0].replace(' ', '').replace('-', '')
    # Cascade Mask R-CNN is mmdet's CascadeRCNN with mask heads.
    assert ('Mask' in detector) == (
        'mask_head' in cfg.model.get('roi_head', {})
    )
    assert cfg.model.type == detector.replace('CascadeMask', 'Cascade')


def test_results_are_those_of_the_readme():
    """Nothing but what a documented run measured, in per cent as mmdet's."""
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    results = [
        value
        for model in metafile()['Models']
        for result in model.get('Results', ())
        for value in result['Metrics'].values()
    ]
    assert results
    for value in results:
        assert f'{value / 100:.3f}' in readme
