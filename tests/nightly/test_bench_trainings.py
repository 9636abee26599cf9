# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmark that trains a detector in three ways, in small."""

from __future__ import annotations

import json
import sys

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_sync_or_local as bench
import narrow_detector


def test_the_arms_are_trained_and_take_statistics_as_they_say(
    tmp_path, monkeypatch
):
    monkeypatch.setenv('SHAPES_ROOT', 'unset')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '-1')
    words = ['--data', 'shapes', '--ranks', '2', '--epochs', '1']
    words += ['--seeds', '3', '--images', '8', '4']
    bench.main([*words, '--out', str(tmp_path)])
    runs = [json.loads(line) for line in (tmp_path / 'runs.jsonl').open()]
    assert [run['arm'] for run in runs] == list(bench.ARMS)
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
        log = next(folder.glob('*/*.log')).read_text()
        layers = '21 MegDetSyncBN layers take their statistics '
        assert layers + said[run['arm']] in log
