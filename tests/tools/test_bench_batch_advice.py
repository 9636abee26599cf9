# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmark of the advice: which runs it makes, and its table."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from mmengine.logging import MessageHub

from mmdet_megdet.noise import NoiseScale
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_batch_advice as bench

ARGS = ['--seeds', '3', '--epochs', '4', '--images', '256', '8']


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes all runs of a seed without training."""
    configs = []

    def train(cfg):
        configs.append(cfg)
        lr = cfg.optim_wrapper.optimizer.lr
        # At 8 images the middle rate is best, and the largest diverges.
        ap = None if lr == 0.08 else 0.5 - abs(lr - 0.04)
        return dict(bbox_mAP=ap, bbox_mAP_50=ap, seconds=1)

    noise = {part: NoiseScale(24.0, 20.0, 30.0, 9) for part in bench.PARTS}
    monkeypatch.setattr(bench, 'train', train)
    monkeypatch.setattr(bench, 'measured', lambda *_: noise)
    args = bench.parse_args([*ARGS, '--out', str(tmp_path)])

    def make():
        runs = bench.Runs(args)
        runs.seed(3)
        return runs, configs

    return make


def test_the_runs_of_a_seed(made):
    runs, configs = made()
    assert [(r['batch'], r['rule'], round(r['lr'], 6)) for r in runs.done] == [
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
    for run, cfg in zip(runs.done, configs, strict=True):
        assert cfg.param_scheduler[0].end == 256 // run['batch'] // 2
        assert cfg.param_scheduler[1].milestones == [3]
        assert cfg.default_hooks.sync_bn_group.bn_size == 8
        assert cfg.default_hooks.total_batch.total_batch_size == run['batch']
        assert ('grad_noise' in cfg.default_hooks) == (run['batch'] > 8)
        agvm = run['rule'] == 'advice + AGVM'
        assert ('module_variance' in cfg.default_hooks) == agvm


def test_finished_runs_are_not_made_again(made, tmp_path):
    made()
    path = tmp_path / 'runs.jsonl'
    lines = path.read_text().splitlines()
    path.write_text('\n'.join(lines[:7]) + '\n')
    _runs, configs = made()
    assert len(configs) == 11 + 4
    assert [json.loads(line) for line in path.open()] == [
        json.loads(line) for line in lines
    ]


def test_the_table(made):
    runs, _ = made()
    other = [dict(r, seed=4) for r in runs.done[:4]]
    other[1]['bbox_mAP'] = 0.4
    lines = bench.table([*runs.done, *other]).splitlines()
    assert lines[0].startswith('| batch | rule | lr | bbox mAP, % |')
    assert len(lines) == 2 + 11
    assert '| 8 | grid | 0.04 | 45.0 (sd 7.1) | 50.0 (sd 0.0) |  | 3, 4 |' in (
        lines
    )
    scale = '24 (20 to 30)'
    assert (
        '| 32 | square root | 0.08 | diverged in 2 of 2 | diverged in 2 of 2 '
        f'| {scale}; {scale} | 3, 4 |'
    ) in lines


@pytest.mark.parametrize('logged', [{}, dict(bbox_mAP=0.4, bbox_mAP_50=0.7)])
def test_a_model_that_detects_nothing_has_an_ap_of_0(logged):
    hub = MessageHub('advice')
    hub.update_scalars({f'val/coco/{k}': v for k, v in logged.items()})
    runner = SimpleNamespace(message_hub=hub)
    expected = logged or dict(bbox_mAP=0.0, bbox_mAP_50=0.0)
    assert bench.narrow.average_precisions(runner) == expected
