# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The monitor's benchmark: what it compares, and that it runs by itself."""

from __future__ import annotations

import json
import sys
from statistics import median

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.tools.command import TOOLS, run

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_monitor


class Watched(nn.Module):
    """Notes whether anybody listens in a training step."""

    def __init__(self):
        super().__init__()
        self.norm = MegDetSyncBN(3)
        self.listened = []

    def train_step(self, batch, optim_wrapper):
        self.listened.append(self.norm.observer is not None)
        self.norm(torch.randn(2, 3, 4, 4))


def test_kinds_take_turns_and_one_in_three_looks(tmp_path, monkeypatch):
    model = Watched()
    monkeypatch.setattr(bench_monitor, 'make_model', lambda *_: (model, None))
    monkeypatch.setattr(bench_monitor, 'make_batch', lambda *_: None)
    dist.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    try:
        seconds = bench_monitor.measure(
            torch.device('cpu'), 6, 1, (8, 8), False
        )
    finally:
        dist.destroy_process_group()
    assert {k: len(v) for k, v in seconds.items()} == dict.fromkeys(
        ['without', 'between looks', 'a look'], 6
    )
    # After the round of warm-up, in which the hook always looks first.
    rounds = torch.tensor(model.listened[3:]).view(6, 3)
    assert rounds.sum(1).tolist() == [1] * 6
    assert rounds.sum(0).tolist() == [2] * 3


@pytest.mark.slow
def test_bench_monitor(tmp_path):
    done = run(
        TOOLS / 'benchmark' / 'bench_monitor.py',
        *('--steps', '2', '--images', '1', '--size', '64', '64'),
        *('--out', tmp_path),
    )
    assert done.returncode == 0, done.stdout
    content = json.loads((tmp_path / 'monitor.json').read_text())
    assert list(content['seconds']) == ['without', 'between looks', 'a look']
    for kind, values in content['seconds'].items():
        assert len(values) == 2
        assert content['medians'][kind] == pytest.approx(median(values))
    ratio = content['medians']['a look'] / content['medians']['without']
    assert content['ratios']['a look'] == pytest.approx(ratio)
    assert f'{ratio:.3f}' in done.stdout
