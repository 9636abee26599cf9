# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mmdet_megdet  # noqa: F401  (checkpoints load safely)
from tests.distributed.faults import CONFIG
from tests.tools.command import TOOLS, run


def train(work_dir: Path, epochs: int, *settings: str, resume=False) -> dict:
    """Trains on two ranks to the end of an epoch; returns its checkpoint."""
    options = ['--resume'] if resume else []
    result = run(
        TOOLS / 'dist_train.sh',
        CONFIG,
        '2',
        '--work-dir',
        work_dir,
        *options,
        '--cfg-options',
        f'train_cfg.max_epochs={epochs}',
        'param_scheduler.0.end=10',
        'train_dataloader.dataset.augment=True',
        'default_hooks.diary=None',
        *settings,
        cold=True,
    )
    assert result.returncode == 0, result.stdout
    return torch.load(work_dir / f'epoch_{epochs}.pth')


def differences(first: Any, second: Any, place: str = '') -> list[str]:
    """Where two nests of containers, tensors and numbers differ in a bit."""
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f'{place}: keys {first.keys()} and {second.keys()}']
        pairs = [(f'{place}.{k}', first[k], second[k]) for k in first]
    elif isinstance(first, list | tuple):
        if len(first) != len(second):
            return [f'{place}: {len(first)} and {len(second)} entries']
        pairs = [
            (f'{place}[{i}]', *pair)
            for i, pair in enumerate(zip(first, second, strict=True))
        ]
    elif isinstance(first, torch.Tensor):
        same = first.dtype == second.dtype and torch.equal(first, second)
        return [] if same else [place]
    elif type(first) is type(second) and first == second:
        return []
    else:
        return [f'{place}: {first!r} and {second!r}']
    return [found for p, a, b in pairs for found in differences(a, b, p)]


def history(checkpoint: dict, name: str) -> np.ndarray:
    return checkpoint['message_hub']['log_scalars'][name].data[0]


@pytest.mark.slow
def test_resumed_run_equals_the_straight_one(tmp_path):
    """Two ranks: four epochs straight, and two, a stop, and two more.

    The data are augmented at random, batches are drawn at random, updates
    have two micro-steps; after the stop the warm-up ends and a milestone
    comes. Then with other workers too.
    """
    workers = 'train_dataloader.num_workers={}'.format
    straight = train(tmp_path / 'straight', 4, workers(0))
    stopped = train(tmp_path / 'stopped', 2, workers(0))
    resumed = train(tmp_path / 'stopped', 4, workers(1), resume=True)

    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        assert straight[part]
        assert differences(straight[part], resumed[part], part) == []
    for name in ('train/loss', 'train/lr'):
        np.testing.assert_array_equal(
            history(straight, name), history(resumed, name)
        )
    assert resumed['meta']['iter'] == 16

    # What was compared did move after the stop.
    moved = differences(stopped['state_dict'], resumed['state_dict'])
    assert {
        '.conv.weight',
        '.norm.running_mean',
        '.norm.running_var',
        '.norm.num_batches_tracked',
    } <= set(moved)
    assert differences(stopped['optimizer'], resumed['optimizer']) != []
