# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Own images as `docs/getting_started.md` says, mmdet's tools afterwards.

All in this process, since starting one takes longer than the work.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path

import mmdet
import mmengine
import pytest

from mmdet_megdet.demo_data import generate_shapes
from tests.docs.markdown import PAGES, blocks
from tests.tools.command import ROOT
from tools import test as test_tool
from tools import train as train_tool

pytestmark = pytest.mark.slow

CONFIG = 'configs/megdet/mine.py'
CHECKPOINT = 'work_dirs/mine/epoch_1.pth'
ANALYSIS = Path(mmdet.__path__[0]) / '.mim' / 'tools' / 'analysis_tools'
# Less work than the page's, and no processes for data.
QUICK = [
    'train_cfg.max_epochs=1',
    # So that a model that has learned nothing has detections.
    'model.test_cfg.rcnn.score_thr=0.0',
    *(
        f'{loader}_dataloader.{option}'
        for loader in ('train', 'val', 'test')
        for option in ('num_workers=0', 'persistent_workers=False')
    ),
]


def call(main, *words: str) -> None:
    """Runs a tool's main function, or a script, with a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', ['tool', *map(str, words)])
        if callable(main):
            main()
        else:
            runpy.run_path(str(main), run_name='__main__')


def quick(run: str) -> list[str]:
    # Runners of one name would share a logger.
    return ['--cfg-options', *QUICK, f'experiment_name=walkthrough_{run}']


def own_images(folder: Path) -> None:
    """Generated ones, which pass for cats and dogs, where the page has it."""
    paths = generate_shapes(folder / 'shapes', train=16, val=4, size=(96, 96))
    mine = folder / 'data' / 'mine'
    (mine / 'annotations').mkdir(parents=True)
    for split, (source, images) in paths.items():
        content = json.loads(source.read_text())
        kept = content['categories'][:2]
        for category, name in zip(kept, ('cat', 'dog'), strict=True):
            category['name'] = name
        content['categories'] = kept
        content['annotations'] = [
            a for a in content['annotations']
            if a['category_id'] in {c['id'] for c in kept}
        ]  # fmt: skip
        target = mine / 'annotations' / f'{split}.json'
        target.write_text(json.dumps(content))
        (mine / split).symlink_to(images)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder with the page's config, trained for an epoch, and tested."""
    folder = tmp_path_factory.mktemp('walkthrough')
    shutil.copytree(ROOT / 'configs', folder / 'configs')
    (block,) = [
        block
        for page in PAGES
        for block in blocks(page)
        if block.mark == f'file: {CONFIG}'
    ]
    (folder / CONFIG).write_text(block.text)
    own_images(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call(train_tool.main, CONFIG, *quick('train'))
        call(
            test_tool.main,
            *(CONFIG, CHECKPOINT, '--out', 'results.pkl'),
            *('--show-dir', 'images'),
            *quick('test'),
            'test_evaluator.outfile_prefix=predictions',
        )
    return folder


@pytest.fixture
def there(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return trained


def test_own_images_are_trained_on(there):
    (scalars,) = there.glob('work_dirs/mine/*/vis_data/scalars.json')
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    assert [x['step'] for x in lines if 'coco/bbox_mAP' in x] == [1]
    predictions = mmengine.load('results.pkl')
    assert len(predictions) == 4
    labels = {
        label
        for image in predictions
        for label in image['pred_instances']['labels'].tolist()
    }
    assert labels
    assert labels <= {0, 1}


def test_detections_are_drawn(there):
    images = list(there.glob('work_dirs/mine/*/images/*.png'))
    assert len(images) == 4


def test_eval_metric_repeats_what_test_said(there, capsys):
    call(ANALYSIS / 'eval_metric.py', CONFIG, 'results.pkl')
    printed = capsys.readouterr().out.splitlines()[-1]
    (said,) = there.glob('work_dirs/mine/*/2*.json')
    for name, value in json.loads(said.read_text()).items():
        if name.startswith('coco/'):
            assert f"'{name}': {value}" in printed


@pytest.mark.parametrize(
    ('tool', 'words', 'made'),
    [
        (
            'confusion_matrix',
            [CONFIG, 'results.pkl', 'confusion'],
            ['confusion/confusion_matrix.png'],
        ),
        (
            'analyze_results',
            [CONFIG, 'results.pkl', 'analysis', '--topk', '1']
            + ['--cfg-options', 'model.backbone.init_cfg=None'],
            ['analysis/good/*_?.*.png', 'analysis/bad/*_?.*.png'],
        ),
        (
            'coco_error_analysis',
            ['predictions.bbox.json', 'errors', '--ann']
            + ['data/mine/annotations/val.json'],
            ['errors/bbox/*.png'],
        ),
    ],
)
def test_mmdets_tools_draw(tool, words, made, there):
    call(ANALYSIS / f'{tool}.py', *words)
    for pattern in made:
        images = list(Path().glob(pattern))
        assert images
        assert images[0].read_bytes().startswith(b'\x89PNG')
