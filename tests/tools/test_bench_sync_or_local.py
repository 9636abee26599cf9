# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmark of what synchronised BatchNorm pays: runs and table."""

from __future__ import annotations

import csv
import json
import sys
from itertools import chain
from types import SimpleNamespace

import pytest
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_sync_or_local as bench
import sync_or_local_report as report

TINY = ['--data', 'shapes', '--ranks', '2', '--epochs', '1', '--seeds', '3']
TINY += ['--images', '8', '4']


@pytest.fixture(scope='module')
def environment():
    """Takes back where the generated images lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('SHAPES_ROOT', 'unset')
        patch.setenv('CUDA_VISIBLE_DEVICES', '-1')
        yield


def result(data, arm, seed, ap, ap50):
    metrics = dict(bbox_mAP=ap, bbox_mAP_50=ap50, bbox_mAP_75=0.5)
    return dict(data=data, arm=arm, seed=seed, metrics=metrics, seconds=7)


RESULTS = [
    result('shapes', 'synced', 0, 0.5, 0.75),
    result('shapes', 'local', 0, 0.25, 0.5),
    result('bccd', 'synced', 0, 0.5, 0.625),
    result('shapes', 'synced', 1, 0.25, 0.25),
    result('shapes', 'local', 1, 0.375, 0.125),
    result('shapes', 'local', 2, 0.875, 0.125),
]


def test_runs_are_gathered_by_data_set_and_arm():
    rows = report.summarise(RESULTS)
    assert [tuple(row) for row in rows] == [
        ('shapes', 'synced', [0, 1], value([0.5, 0.25], [0.75, 0.25])),
        (
            *('shapes', 'local', [0, 1, 2]),
            value([0.25, 0.375, 0.875], [0.5, 0.125, 0.125]),
        ),
        # Of the seeds that both have.
        (
            *('shapes', 'synced - local', [0, 1]),
            value([0.25, -0.125], [0.25, 0.125]),
        ),
        ('bccd', 'synced', [0], value([0.5], [0.625])),
    ]
    assert rows[1].mean('bbox_mAP') == 0.5
    assert report.cells(rows[1]) == [
        *('shapes', 'local', '0.500 (0.250, 0.375, 0.875)'),
        '0.250 (0.500, 0.125, 0.125)',
    ]
    assert report.cells(rows[2])[2] == '+0.062 (+0.250, -0.125)'


def value(ap, ap50):
    return dict(bbox_mAP=ap, bbox_mAP_50=ap50)


def test_files_hold_the_rows_and_the_runs(tmp_path):
    rows = report.summarise(RESULTS)
    report.save(rows, RESULTS, tmp_path)
    lines = (tmp_path / 'sync_or_local.md').read_text().splitlines()
    assert lines[:2] == [
        '| data | arm | bbox mAP | bbox AP50 |',
        '| --- | --- | --- | --- |',
    ]
    assert [line.strip('| ').split(' | ') for line in lines[2:]] == [
        report.cells(row) for row in rows
    ]
    found = json.loads((tmp_path / 'sync_or_local.json').read_text())
    assert found[1] == dict(
        data='shapes',
        arm='local',
        seeds=[0, 1, 2],
        values=rows[1].values,
        means=dict(bbox_mAP=0.5, bbox_mAP_50=0.25),
    )
    with (tmp_path / 'sync_or_local.csv').open() as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == len(RESULTS)
    assert runs[4] == dict(
        data='shapes',
        arm='local',
        seed='1',
        seconds='7',
        bbox_mAP='0.375',
        bbox_mAP_50='0.125',
    )


@pytest.fixture(scope='module')
def folder(tmp_path_factory, environment):
    """Results of a first call, then of one that asks for all arms."""
    out = tmp_path_factory.mktemp('pays')
    first = bench.main([*TINY, '--arms', 'single', '--out', str(out)])
    assert first == 0
    kept = out / 'shapes' / 'single' / 'seed3' / 'result.json'
    before = kept.stat().st_mtime_ns
    assert bench.main([*TINY, '--out', str(out)]) == 0
    return SimpleNamespace(out=out, before=before, after=kept.stat())


@pytest.mark.slow
def test_a_finished_run_is_kept(folder):
    assert folder.after.st_mtime_ns == folder.before


@pytest.mark.slow
def test_the_table_has_what_the_runs_found(folder):
    rows = json.loads((folder.out / 'sync_or_local.json').read_text())
    assert [row['arm'] for row in rows] == [*bench.ARMS, 'synced - local']
    for row in rows[:3]:
        path = folder.out / 'shapes' / row['arm'] / 'seed3' / 'result.json'
        metrics = json.loads(path.read_text())['metrics']
        log = next(path.parent.glob('*/vis_data/scalars.json'))
        logged = json.loads(log.read_text().splitlines()[-1])
        for name, (found,) in row['values'].items():
            assert found == metrics[name] == logged[f'coco/{name}']
            assert found == row['means'][name]
            assert 0 <= found <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ('arm', 'said'),
    [
        ('synced', 'over 2 images: 2 of 2 ranks x 1 images per GPU\n'),
        ('local', 'over 1 images: 1 of 2 ranks x 1 images per GPU (no'),
        ('single', 'over 2 images: 1 of 1 ranks x 2 images per GPU (no'),
    ],
)
def test_arms_take_statistics_as_they_say(folder, arm, said):
    work_dir = folder.out / 'shapes' / arm / 'seed3'
    log = next(work_dir.glob('*/*.log')).read_text()
    assert f'21 MegDetSyncBN layers take their statistics {said}' in log


@pytest.mark.slow
def test_results_of_other_settings_are_refused(folder, capsys):
    words = [*TINY, '--epochs', '2', '--out', str(folder.out)]
    assert bench.main(words) == 1
    said = capsys.readouterr().err
    assert 'synced/seed3/result.json is the result of other settings' in said


@pytest.mark.slow
def test_all_arms_see_the_same_images_in_every_update(
    folder, monkeypatch, tmp_path
):
    args = bench.parse_args([*TINY, '--ranks', '4', '--out', str(tmp_path)])
    monkeypatch.setenv('SHAPES_ROOT', str(folder.out / 'light_8_4'))
    spread = [updates('synced', rank, args) for rank in range(4)]
    together = updates('single', 0, args)
    assert [
        list(chain(*batches)) for batches in zip(*spread, strict=True)
    ] == together
    assert sorted(chain(*together)) == list(range(8))


def updates(arm, rank, args):
    """Ids of the images that a rank sees, batch by batch."""
    run = bench.Run('shapes', arm, 3, args)
    with DefaultScope.overwrite_default_scope('mmdet'):
        loader = Runner.build_dataloader(run.cfg.train_dataloader, seed=3)
        loader.batch_sampler.configure(
            total_batch_size=4,
            unit_size=4,
            seed=3,
            rank=rank,
            world_size=run.ranks,
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
        (['--arms', 'both'], "invalid choice: 'both'"),
        (['--seeds', '0', '-1'], '--seeds [0, -1]: each from 0 to 4294967295'),
    ],
)
def test_bad_options_are_refused(words, reason, capsys):
    with pytest.raises(SystemExit):
        bench.parse_args(words)
    assert reason in capsys.readouterr().err


def test_a_missing_data_set_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('BCCD_ROOT', str(tmp_path / 'none'))
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '-1')
    assert bench.main(['--data', 'bccd', '--out', str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f'error: there is no {tmp_path}/none/annotations' in said
    assert 'BCCD_ROOT=FOLDER' in said
