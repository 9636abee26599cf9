# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Every config is what README and metafile promise, trains and predicts."""

import re
import sys
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from math import cos, pi

import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.runner import Runner
from torch.nn.modules.batchnorm import _BatchNorm

from mmdet_megdet.runtime import adapt_config
from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.data.small_coco import coco_like, dicts_in, shrink
from tests.docs.markdown import blocks, table
from tests.tools.command import ROOT, TOOLS

sys.path.append(str(TOOLS / 'analysis'))  # as for scripts there

import plot_schedule

CONFIGS = ROOT / 'configs' / 'megdet'
MODELS = yaml.safe_load((CONFIGS / 'metafile.yml').read_text())['Models']
ROWS = table('configs/megdet/README.md', 'config')
SIDE, IMAGES = 64, 2

LINEAR = {0: 0.001, 250: 0.25075, 500: 0.5005, 1000: 1}
EPOCHS_24 = {1599: 1, 1600: 0.1, 2199: 0.1, 2200: 0.01, 2399: 0.01}


@dataclass(frozen=True)
class Expected:
    """What the README does not say; the defaults are r50_fpn_256bs.py's."""

    # By part of the model, all MegDetSyncBN: ResNet-50's, and those of four
    # lateral and four output convolutions.
    norms: dict = field(default_factory=lambda: dict(backbone=53, neck=8))
    # eps and momentum by part of the model, where not PyTorch's defaults.
    kinds: dict = field(default_factory=dict)
    images: int = 4  # per GPU
    updates: int = 100  # of an epoch, for the factors
    # Of the learning rate, by update.
    factors: dict = field(default_factory=lambda: LINEAR | EPOCHS_24)
    optimizer: str = 'SGD'
    wrapper: str = 'OptimWrapper'
    clip: float = 35
    with_cp: bool = False


RECIPE = Expected()
SMALL = Expected(norms=dict(backbone=20, neck=8))
TABLE = {
    'r50_fpn_256bs': RECIPE,
    'r50_fpn_256bs_amp': replace(RECIPE, wrapper='AmpOptimWrapper'),
    'r50_fpn_256bs_recompute': replace(RECIPE, with_cp=True),
    'r50_fpn_256bs_lr0.32': RECIPE,
    # MLPerf's: in updates, with COCO's epochs.
    'r50_fpn_256bs_lr0.24': replace(
        RECIPE,
        updates=458,
        factors={0: 0.0025, 900: 0.50125, 1800: 1, 5624: 1}
        | {5625: 0.1, 7499: 0.1, 7500: 0.01, 8243: 0.01},
    ),
    'r50_fpn_512bs': replace(
        RECIPE,
        factors={0: 0.0025, 450: 0.50125, 900: 1, 1499: 1}
        | {1500: 0.1, 1999: 0.1, 2000: 0.01, 2199: 0.01},
    ),
    'r50_fpn_256bs_localbn': replace(RECIPE, clip=10),
    'r50_fpn_256bs_cosine-warmup': replace(
        RECIPE,
        factors=RECIPE.factors | {250: 0.001 + 0.999 * (1 - cos(pi / 4)) / 2},
    ),
    'r50_fpn_256bs_small-objects': replace(
        RECIPE,
        factors=EPOCHS_24 | {0: 0.01, 1: 0.01, 500: 0.01, 750: 0.505, 1000: 1},
    ),
    'r50_fpn_16bs': replace(RECIPE, images=2),
    'faster-rcnn_r50_fpn_256bs': RECIPE,
    'mask-rcnn_r50_fpn_256bs': RECIPE,
    # The FPN begins one level later, and has two more at its end: 3 + 5.
    'retinanet_r50_fpn_256bs': RECIPE,
    'retinanet_effb3_fpn_256bs': replace(
        RECIPE,
        # The stem and three in each of 26 blocks, but for two that do not
        # expand; none after lateral convolutions; 4 + 4 for each of five
        # levels.
        norms=dict(backbone=1 + 24 * 3 + 2 * 2, neck=5, bbox_head=8 * 5),
        # TensorFlow's epsilon, and 1 - its momentum of 0.99.
        kinds=dict(backbone=(1e-3, 0.01)),
    ),
    'x101_fpn_256bs': replace(
        RECIPE,
        norms=dict(backbone=104, neck=8),
        factors=EPOCHS_24 | {0: 0.001, 750: 0.5005, 1000: 0.667, 1500: 1},
    ),
    'shapes_r18_fpn': replace(
        SMALL,
        optimizer='AdamW',
        factors={0: 0.001, 20: 0.5005, 40: 1, 299: 1, 300: 0.1, 399: 0.1},
    ),
    'bccd_r18_fpn': replace(
        SMALL,
        factors={0: 0.001, 25: 0.5005, 50: 1, 799: 1, 800: 0.1, 1199: 0.01},
    ),
}


@cache
def _load(name: str) -> Config:
    # MMEngine reads all of mmdet's model index for every `mmdet::` base.
    return Config.fromfile(CONFIGS / f'{name}.py')


def load(name: str) -> Config:
    """A config of its own, to change as one likes."""
    return deepcopy(_load(name))


def metadata(name):
    """What mim reads of a config."""
    (model,) = [m for m in MODELS if m['Name'] == f'megdet_{name}']
    assert model['Config'] == f'configs/megdet/{name}.py'
    assert model['In Collection'] == 'MegDet'
    return model['Metadata']


def promised_detector(name):
    """Its type, and whether it has masks."""
    detector = metadata(name)['Architecture'][0]
    # Cascade Mask R-CNN is mmdet's CascadeRCNN with mask heads.
    kind = re.sub('(?<=Cascade) Mask|[ -]', '', detector)
    return kind, 'Mask' in detector


@pytest.mark.parametrize(
    ('name', 'row'), zip(TABLE, ROWS, strict=True), ids=TABLE
)
def test_settings(name, row):
    link, _, batch, bn_size, schedule, *_ = row
    assert link == f'[{name}]({name}.py)'
    cfg, expected, told = load(name), TABLE[name], metadata(name)
    masks = 'mask_head' in cfg.model.get('roi_head', ())
    assert (cfg.model.type, masks) == promised_detector(name)
    norms = [d for d in dicts_in(cfg.model) if d.get('type') == 'MegDetSyncBN']
    assert {str(d.get('bn_size') or 'all') for d in norms} == {bn_size}
    assert cfg.train_dataloader.batch_size == expected.images
    total = int(batch)
    assert cfg.default_hooks.total_batch == dict(
        type='TotalBatchHook', total_batch_size=total
    )
    assert total == told['Batch Size']
    assert cfg.train_cfg.type == 'UpdateTrainLoop'
    assert cfg.train_cfg.max_epochs == told['Epochs']
    assert cfg.train_dataloader.batch_sampler.type == 'UpdateBatchSampler'
    assert cfg.optim_wrapper.type == expected.wrapper
    assert cfg.optim_wrapper.optimizer.type == expected.optimizer
    assert cfg.optim_wrapper.clip_grad == dict(
        max_norm=expected.clip, norm_type=2
    )
    assert cfg.default_hooks.sync_bn_group == dict(type='SyncBNGroupHook')
    assert 'accumulative_counts' not in cfg.optim_wrapper
    # A child config that sets custom_hooks would lose what stood there.
    assert 'custom_hooks' not in cfg

    rate, warmup = schedule.split(',', 1)
    lengths = re.findall(r'(\d+) (?:lin|cos|at)', warmup)
    assert sum(map(int, lengths)) == cfg.param_scheduler[0].end
    gpus = 1 if total == 8 else 8
    rates = plot_schedule.rehearse(cfg, gpus, expected.updates * total).rates
    assert len(rates) == expected.updates * told['Epochs']
    lr = float(rate.split()[0])
    for update, factor in expected.factors.items():
        assert rates[update] == pytest.approx(lr * factor, rel=1e-12)


def test_there_are_no_others():
    assert {path.stem for path in CONFIGS.glob('*.py')} == TABLE.keys()
    assert len(MODELS) == len(TABLE)
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    assert index == dict(Import=['configs/megdet/metafile.yml'])


def test_results_are_those_of_a_documented_run():
    """In per cent, as mmdet's."""
    readme = (ROOT / 'README.md').read_text()
    results = [x for model in MODELS for x in model.get('Results', ())]
    values = [v for result in results for v in result['Metrics'].values()]
    assert values
    assert [v for v in values if f'{v / 100:.3f}' not in readme] == []


def test_the_readmes_example():
    (block,) = [
        block
        for block in blocks(CONFIGS / 'README.md')
        if block.language == 'python'
    ]
    example = Config.fromstring(block.text, '.py').to_dict()
    expected = load('faster-rcnn_r50_fpn_256bs').to_dict()
    # MMEngine's notes of where a base came from.
    for part in dicts_in([example, expected]):
        part.pop('_scope_', None)
    assert example == expected


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp('images')
    coco_like(folder, SIDE, train=IMAGES, val=1)
    return folder


def distinct_models():
    """Names of configs, one where several differ in their training alone."""
    first = {}
    for name, config in TABLE.items():
        parts = config.norms, config.kinds, config.with_cp
        first.setdefault(str((promised_detector(name), parts)), name)
    # Parts of the others': Faster R-CNN, and ResNet-18 with its FPN.
    return set(first.values()) - {'bccd_r18_fpn'}


@pytest.mark.parametrize('name', sorted(distinct_models()))
def test_trains_and_predicts(name, images, tmp_path, monkeypatch):
    # The Runner formats its config four times, a second or two each.
    monkeypatch.setattr(Config, 'pretty_text', '(not formatted in this test)')
    expected = TABLE[name]
    cfg = load(name)
    shrink(cfg, images, tmp_path, SIDE, IMAGES)
    cfg.default_hooks.total_batch.total_batch_size = IMAGES
    cfg.default_hooks.sync_bn_group.bn_size = None
    runner = Runner.from_cfg(adapt_config(cfg))
    model = runner.model
    norms = [
        (path.split('.')[0], layer)
        for path, layer in model.named_modules()
        if isinstance(layer, _BatchNorm)
    ]
    assert Counter(part for part, _ in norms) == expected.norms
    model.train()
    for part, layer in norms:
        kind = expected.kinds.get(part, (1e-5, 0.1))
        assert type(layer) is MegDetSyncBN
        assert (layer.eps, layer.momentum) == kind
        assert layer.training
        assert layer.weight.requires_grad
    blocks = [m for m in model.backbone.modules() if hasattr(m, 'with_cp')]
    assert {block.with_cp for block in blocks} == {expected.with_cp}
    runner.train()

    # Recomputation does not count again.
    counts = {int(layer.num_batches_tracked) for _, layer in norms}
    assert counts == {1}
    scalars = runner.message_hub.log_scalars.items()
    losses = [value.current() for name, value in scalars if 'loss' in name]
    assert losses
    assert all(0 <= loss < 100 for loss in losses)
    model.eval()
    (sample,) = model.val_step(next(iter(runner.val_dataloader)))
    found = sample.pred_instances
    assert len(found)
    assert torch.isfinite(found.bboxes).all()
    assert ('masks' in found) == promised_detector(name)[1]
