# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmark of what synchronised BatchNorm pays: runs and table."""

from __future__ import annotations

import json
import sys
from itertools import chain

import pytest
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_sync_or_local as bench
import narrow_detector

TINY = ['--data', 'shapes', '--ranks', '2', '--epochs', '1', '--seeds', '3']
TINY += ['--images', '8', '4']


@pytest.fixture(scope='module', autouse=True)
def environment():
    """Takes back where the generated images lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('SHAPES_ROOT', 'unset')
        patch.setenv('CUDA_VISIBLE_DEVICES', '-1')
        yield


def result(data, arm, seed, ap, ap50):
    metrics = dict(bbox_mAP=ap, bbox_mAP_50=ap50)
    return dict(data=data, arm=arm, seed=seed, seconds=7, **metrics)


def test_runs_are_gathered_by_data_set_and_arm():
    results = [
        result('shapes', 'synced', 0, 0.5, 0.75),
        result('shapes', 'local', 0, 0.25, 0.5),
        result('bccd', 'synced', 0, 0.5, 0.625),
        result('shapes', 'synced', 1, 0.25, 0.25),
        result('shapes', 'local', 1, 0.375, 0.125),
        result('shapes', 'local', 2, 0.875, 0.125),
    ]
    assert bench.table(results).splitlines() == [
        '| data | arm | bbox_mAP | bbox_mAP_50 |',
        '|---|---|---|---|',
        '| shapes | synced | 0.375 (0.500, 0.250) | 0.500 (0.750, 0.250) |',
        '| shapes | local | 0.500 (0.250, 0.375, 0.875) | '
        '0.250 (0.500, 0.125, 0.125) |',
        # Of the seeds that both have.
        '| shapes | synced - local | +0.062 (+0.250, -0.125) | '
        '+0.188 (+0.250, +0.125) |',
        '| bccd | synced | 0.500 (0.500) | 0.625 (0.625) |',
    ]


def test_a_finished_run_is_not_made_again(tmp_path):
    made = []

    def make():
        made.append(len(made))
        return dict(ap=0.5)

    facts = dict(seed=0, lr=0.1 * 3, images=[8, 4])
    found = [narrow_detector.Results(tmp_path).get(facts, make)]
    again = narrow_detector.Results(tmp_path)
    found.append(again.get(dict(facts, lr=0.3), make))
    assert found[0] == found[1] == dict(facts, ap=0.5)
    again.get(dict(facts, seed=1), make)
    assert made == [0, 1]
    assert len((tmp_path / 'runs.jsonl').read_text().splitlines()) == 2


@pytest.mark.slow
def test_the_arms_are_trained_and_take_statistics_as_they_say(
    tmp_path, capsys
):
    bench.main([*TINY, '--out', str(tmp_path)])
    runs = [json.loads(line) for line in (tmp_path / 'runs.jsonl').open()]
    assert [run['arm'] for run in runs] == list(bench.ARMS)
    assert bench.table(runs) in capsys.readouterr().out
    said = dict(
        synced='over 2 images: 2 of 2 ranks x 1 images per GPU\n',
        local='over 1 images: 1 of 2 ranks x 1 images per GPU (no',
        single='over 2 images: 1 of 1 ranks x 2 images per GPU (no',
    )
    for run in runs:
        folder = tmp_path / 'shapes' / run['arm'] / 'seed3'
        scalars = next(folder.glob('*/vis_data/scalars.json')).read_text()
        logged = json.loads(scalars.splitlines()[-1])
        for name in narrow_detector.METRICS:
            assert run[name] == logged[f'coco/{name}']
            assert 0 <= run[name] <= 1
        log = next(folder.glob('*/*.log')).read_text()
        layers = '21 MegDetSyncBN layers take their statistics '
        assert layers + said[run['arm']] in log


def test_all_arms_see_the_same_images_in_every_update(tmp_path):
    args = bench.parse_args([*TINY, '--ranks', '4', '--out', str(tmp_path)])
    narrow_detector.prepare_images(args)
    spread = [updates('synced', rank, args) for rank in range(4)]
    together = updates('single', 0, args)
    assert [
        list(chain(*batches)) for batches in zip(*spread, strict=True)
    ] == together
    assert sorted(chain(*together)) == list(range(8))


def updates(arm, rank, args):
    """Ids of the images that a rank sees, batch by batch."""
    ranks, cfg = bench.config(args, 'shapes', arm, 3)
    with DefaultScope.overwrite_default_scope('mmdet'):
        loader = Runner.build_dataloader(cfg.train_dataloader, seed=3)
        loader.batch_sampler.configure(
            total_batch_size=4,
            unit_size=4,
            seed=3,
            rank=rank,
            world_size=ranks,
        )
        return [
            [sample.img_id for sample in batch['data_samples']]
            for batch in loader
        ]


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        (['--images', '12', '4'], '12 training images of shapes are no'),
        (['--ranks', '16'], '200 training images of bccd are no whole'),
        (['--data', 'bccd'], 'there is no none/annotations/instances_train'),
        (['--arms', 'both'], "invalid choice: 'both'"),
    ],
)
def test_bad_options_are_refused(words, reason, capsys, monkeypatch):
    monkeypatch.setenv('BCCD_ROOT', 'none')
    with pytest.raises(SystemExit):
        bench.parse_args(words)
    assert reason in capsys.readouterr().err
