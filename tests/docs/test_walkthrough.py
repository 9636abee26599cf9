# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Own images as the pages say: trained on, evaluated, and analysed by mmdet.

All in this process, since starting one takes longer than the work.
"""

import json
import runpy
import shutil
import sys
from pathlib import Path

import mmdet
import mmengine
import pytest

from mmdet_megdet.demo_data import generate_shapes
from tests.docs.markdown import blocks, commands
from tests.tools.command import ROOT
from tools import test as test_tool
from tools import train as train_tool

CONFIG = 'configs/megdet/mine.py'
CHECKPOINT = 'work_dirs/mine/epoch_1.pth'
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


def own_images(mine: Path) -> None:
    """Lay generated images, as of cats and dogs, where the page has them."""
    shapes = mine / 'shapes'
    generate_shapes(shapes, train=16, val=4, size=(96, 96))
    (mine / 'annotations').mkdir()
    for split in ('train', 'val'):
        source = shapes / 'annotations' / f'instances_{split}.json'
        content = json.loads(source.read_text())
        content['categories'] = [
            dict(id=1, name='cat', supercategory='animal'),
            dict(id=2, name='dog', supercategory='animal'),
        ]
        content['annotations'] = [
            a for a in content['annotations'] if a['category_id'] <= 2
        ]
        target = mine / 'annotations' / f'{split}.json'
        target.write_text(json.dumps(content))
        (mine / split).symlink_to(shapes / 'images' / split)


@pytest.mark.slow
def test_own_images_and_mmdets_tools(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / 'configs', 'configs')
    (config,) = [
        block
        for block in blocks(ROOT / 'docs' / 'getting_started.md')
        if block.mark == f'file: {CONFIG}'
    ]
    Path(CONFIG).write_text(config.text)
    own_images(Path('data/mine').absolute())
    # Runners of one name would share a logger.
    quick = ['--cfg-options', *QUICK, 'experiment_name=walkthrough']
    train_tool.main([CONFIG, *quick])

    (block,) = [
        block
        for block in blocks(ROOT / 'docs' / 'evaluation.md')
        if 'mim_tools' in block.text
    ]
    _, test, *tools = [command.text for command in commands(block)]
    words = test.replace('CHECKPOINT', CHECKPOINT).replace('CONFIG', CONFIG)
    test_tool.main(
        words.split()[2:]
        + [*QUICK, 'experiment_name=walkthrough_test']
        + ['--show-dir', 'images']
    )
    for command in tools:
        script, *arguments = [
            word.replace('CONFIG', CONFIG)
            .replace('ANNOTATIONS', 'data/mine/annotations/val.json')
            .replace('$mim_tools', f'{mmdet.__path__[0]}/.mim/tools')
            for word in command.split()[1:]
        ]
        monkeypatch.setattr(sys, 'argv', [script, *arguments])
        runpy.run_path(script, run_name='__main__')

    (scalars,) = tmp_path.glob('work_dirs/mine/*/vis_data/scalars.json')
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    assert [x['step'] for x in lines if 'coco/bbox_mAP' in x] == [1]
    predictions = mmengine.load('results.pkl')
    assert len(predictions) == 4
    labels = [set(x['pred_instances']['labels'].tolist()) for x in predictions]
    assert set() < set.union(*labels) <= {0, 1}
    # eval_metric.py repeats what tools/test.py said.
    (metrics,) = tmp_path.glob('work_dirs/mine/*/2*.json')
    told = json.loads(metrics.read_text())
    found = {k: v for k, v in told.items() if k.startswith('coco/')}
    assert str(found) in capsys.readouterr().out
    for pattern, number in {
        'work_dirs/mine/*/images/*.png': 4,
        'confusion/confusion_matrix.png': 1,
        'analysis/good/*_?.*.png': 2,
        'analysis/bad/*_?.*.png': 2,
        'errors/bbox/*.png': 12,
    }.items():
        images = list(tmp_path.glob(pattern))
        assert len(images) == number, pattern
        assert images[0].read_bytes().startswith(b'\x89PNG')
