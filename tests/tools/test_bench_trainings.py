# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks that train a narrow detector: runs, results and table."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
from mmengine.logging import MessageHub

from mmdet_megdet.noise import NoiseScale
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_batch_advice
import narrow_detector


@pytest.fixture(scope='module', autouse=True)
def environment():
    """Take back where the generated images lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('SHAPES_ROOT', 'unset')
        patch.setenv('CUDA_VISIBLE_DEVICES', '-1')
        yield


def test_table():
    results = [
        dict(arm='synced', seed=0, bbox_mAP=0.5, bbox_mAP_50=0.75),
        dict(arm='local', seed=0, bbox_mAP=0.25, bbox_mAP_50=math.nan),
        dict(arm='synced', seed=1, bbox_mAP=0.25, bbox_mAP_50=0.25),
    ]
    assert narrow_detector.table(results, ['arm']).splitlines()[2:] == [
        '| synced | 37.5 (50.0, 25.0) | 50.0 (75.0, 25.0) |',
        '| local | 25.0 (25.0) | nan (nan) |',
    ]


@pytest.mark.parametrize('logged', [{}, dict(bbox_mAP=0.4, bbox_mAP_50=0.7)])
def test_a_model_that_detects_nothing_has_an_ap_of_0(logged, monkeypatch):
    hub = MessageHub('advice')
    hub.update_scalars({f'val/coco/{k}': v for k, v in logged.items()})
    runner = SimpleNamespace(message_hub=hub, train=lambda: None)
    monkeypatch.setattr(narrow_detector, 'build_runner', lambda _: runner)
    expected = logged or dict(bbox_mAP=0.0, bbox_mAP_50=0.0)
    assert narrow_detector.train(None) == expected


def test_the_runs_of_the_advice_are_made_once(tmp_path, monkeypatch):
    configs = []

    def train(cfg):
        configs.append(cfg)
        lr = cfg.optim_wrapper.optimizer.lr
        # At 8 images the middle rate is best, and the largest diverges.
        ap = math.nan if lr == 0.08 else 0.5 - abs(lr - 0.04)
        noise = NoiseScale(24.0, 20.0, 30.0, 9)
        return dict(bbox_mAP=ap, bbox_mAP_50=ap, noise=noise)

    monkeypatch.setattr(bench_batch_advice, 'train', train)
    args = SimpleNamespace(epochs=4, images=[256, 8], out=tmp_path)
    runs = bench_batch_advice.runs_of(3, args)
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
    # Warm-up and drop at the same epochs, and BatchNorm over 8 images.
    for run, cfg in zip(runs, configs, strict=True):
        assert cfg.param_scheduler[0].end == 256 // run['batch'] // 2
        assert cfg.param_scheduler[1].milestones == [3]
        assert cfg.default_hooks.sync_bn_group.bn_size == 8
        assert cfg.default_hooks.total_batch.total_batch_size == run['batch']
        assert ('grad_noise' in cfg.default_hooks) == (run['batch'] > 8)
        agvm = run['rule'] == 'advice + AGVM'
        assert ('module_variance' in cfg.default_hooks) == agvm

    path = tmp_path / 'runs.jsonl'
    lines = path.read_text().splitlines()
    path.write_text('\n'.join(lines[:7]) + '\n')
    bench_batch_advice.runs_of(3, args)
    assert len(configs) == 11 + 4
    assert path.read_text().splitlines() == lines
