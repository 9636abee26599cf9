# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks that train a narrow detector: runs, results and table."""

import json
import math
from types import SimpleNamespace

import bench_batch_advice
import bench_sync_or_local
import narrow_detector
import pytest
from mmengine.logging import MessageHub

from mmdet_megdet.noise import NoiseScale


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Take back where the generated images lie."""
    monkeypatch.setenv('SHAPES_ROOT', 'unset')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '-1')


def test_the_ap_is_what_is_logged_and_of_no_detection_0(monkeypatch):
    runner = SimpleNamespace(
        message_hub=MessageHub('advice'), train=lambda: None
    )
    monkeypatch.setattr(narrow_detector, 'build_runner', lambda _: runner)
    none = dict(bbox_mAP=0.0, bbox_mAP_50=0.0)
    assert narrow_detector.train(None) == none
    for name in none:
        runner.message_hub.update_scalar(f'val/coco/{name}', 0.4)
    assert narrow_detector.train(None) == dict.fromkeys(none, 0.4)


def test_the_runs_of_the_advice_are_made_once(tmp_path, monkeypatch, capsys):
    configs = []

    def train(cfg):
        configs.append(cfg)
        lr = cfg.optim_wrapper.optimizer.lr
        # At 8 images the middle rate is best, and the first one diverges.
        ap = math.nan if lr == 0.02 else 0.5 - abs(lr - 0.04)
        noise = NoiseScale(24.0, 20.0, 30.0, 9)
        return dict(bbox_mAP=ap, bbox_mAP_50=0.25, noise=noise)

    monkeypatch.setattr(bench_batch_advice, 'train', train)
    words = ['--epochs', '4', '--images', '256', '8', '--out', str(tmp_path)]
    bench_batch_advice.main([*words, '--seeds', '3', '4'])
    path = tmp_path / 'runs.jsonl'
    lines = path.read_text().splitlines(keepends=True)
    runs = [json.loads(line) for line in lines[:11]]
    assert [(r['batch'], r['rule'], round(r['lr'], 6)) for r in runs] == [
        (8, 'grid', 0.02),
        (8, 'grid', 0.04),
        (8, 'grid', 0.08),
        (32, 'square root', 0.08),
        (32, 'linear', 0.16),
        # 0.04 (1 + 24 / 8) / (1 + 24 / 32)
        (32, 'advice', 0.091429),
        (32, 'advice + AGVM', 0.091429),
        (128, 'square root', 0.16),
        (128, 'linear', 0.64),
        (128, 'advice', 0.134737),
        (128, 'advice + AGVM', 0.134737),
    ]
    # Mean over the seeds, and each.
    table = capsys.readouterr().out
    assert (
        '| 8 | grid | 0.04 | 50.0 (50.0, 50.0) | 25.0 (25.0, 25.0) |' in table
    )
    assert '| 8 | grid | 0.02 | nan (nan, nan) | 25.0 (25.0, 25.0) |' in table
    # Warm-up and drop at the same epochs, and BatchNorm over 8 images.
    for run, cfg in zip(runs, configs, strict=False):
        assert cfg.param_scheduler[0].end == 256 // run['batch'] // 2
        assert cfg.param_scheduler[1].milestones == [3]
        assert cfg.default_hooks.sync_bn_group.bn_size == 8
        assert cfg.default_hooks.total_batch.total_batch_size == run['batch']
        assert ('grad_noise' in cfg.default_hooks) == (run['batch'] > 8)
        agvm = run['rule'] == 'advice + AGVM'
        assert ('module_variance' in cfg.default_hooks) == agvm

    path.write_text(''.join(lines[:7]))
    bench_batch_advice.main([*words, '--seeds', '3'])
    assert len(configs) == 22 + 4
    assert path.read_text() == ''.join(lines[:11])


@pytest.mark.nightly
def test_the_arms_are_trained_and_take_statistics_as_they_say(tmp_path):
    words = '--data shapes --ranks 2 --epochs 1 --seeds 3 --images 8 4'
    bench_sync_or_local.main([*words.split(), '--out', str(tmp_path)])
    runs = [json.loads(line) for line in (tmp_path / 'runs.jsonl').open()]
    said = dict(
        synced='over 2 images: 2 of 2 ranks x 1 images per GPU\n',
        local='over 1 images: 1 of 2 ranks x 1 images per GPU (no',
        single='over 2 images: 1 of 1 ranks x 2 images per GPU (no',
    )
    assert [run['arm'] for run in runs] == list(said)
    for run in runs:
        folder = tmp_path / 'shapes' / run['arm'] / 'seed3'
        scalars = next(folder.glob('*/vis_data/scalars.json')).read_text()
        logged = json.loads(scalars.splitlines()[-1])
        for name in narrow_detector.METRICS:
            assert run[name] == logged[f'coco/{name}']
        log = next(folder.glob('*/*.log')).read_text()
        layers = '21 MegDetSyncBN layers take their statistics '
        assert layers + said[run['arm']] in log
