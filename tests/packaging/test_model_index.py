# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What mim and MMEngine read about the configs: all of them, nothing else."""

from __future__ import annotations

import pytest
import yaml
from mmengine.config import Config

from tests.tools.command import ROOT

INDEX = yaml.safe_load((ROOT / 'model-index.yml').read_text())
(METAFILE,) = INDEX['Import']
MODELS = yaml.safe_load((ROOT / METAFILE).read_text())['Models']


def test_every_config_is_listed_once():
    configs = (ROOT / 'configs' / 'megdet').glob('*.py')
    there = [path.relative_to(ROOT).as_posix() for path in configs]
    assert sorted(model['Config'] for model in MODELS) == sorted(there)


@pytest.mark.parametrize('model', MODELS, ids=lambda m: m['Name'])
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
    assert cfg.model.type == detector.replace('CascadeMask', 'Cascade')
    masks = 'mask_head' in cfg.model.get('roi_head', {})
    assert masks == ('Mask' in detector)


def test_results_are_those_of_the_readme():
    """Nothing but what a documented run measured, in per cent as mmdet's."""
    readme = (ROOT / 'README.md').read_text()
    results = [x for model in MODELS for x in model.get('Results', ())]
    values = [v for result in results for v in result['Metrics'].values()]
    assert values
    assert [v for v in values if f'{v / 100:.3f}' not in readme] == []
