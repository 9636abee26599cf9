# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The monitor's benchmark: what it compares, and that it runs."""

from __future__ import annotations

import json
import sys
from statistics import median

import pytest
import torch
import torch.distributed as dist
from mmengine.optim import OptimWrapper
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_monitor
from training_steps import parse_args


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
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    made = model, wrapper
    monkeypatch.setattr(bench_monitor, 'make_model', lambda *_: made)
    monkeypatch.setattr(bench_monitor, 'make_batch', lambda *_: None)
    dist.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    try:
        args = parse_args(['--steps', '6', '--device', 'cpu'], '', 1)
        measured = bench_monitor.measure(torch.device('cpu'), args)
    finally:
        dist.destroy_process_group()
    assert {k: len(m.times) for k, m in measured.items()} == dict.fromkeys(
        ['without', 'between looks', 'a look'], 6
    )
    # After the round of warm-up, in which the hook always looks first.
    rounds = torch.tensor(model.listened[3:]).view(6, 3)
    assert rounds.sum(1).tolist() == [1] * 6
    assert rounds.sum(0).tolist() == [2] * 3


@pytest.mark.slow
def test_bench_monitor(tmp_path, capsys):
    words = ['--steps', '2', '--images', '1', '--size', '64', '64']
    bench_monitor.main([*words, '--device', 'cpu', '--out', str(tmp_path)])
    content = json.loads((tmp_path / 'monitor.json').read_text())
    medians = {k: median(v) for k, v in content['seconds'].items()}
    assert list(medians) == ['without', 'between looks', 'a look']
    ratios = {k: v / medians['without'] for k, v in medians.items()}
    assert content['ratios'] == pytest.approx(ratios)
    between, look = ratios['between looks'], ratios['a look']
    said = capsys.readouterr().out
    assert f'| {look:.3f} |' in said
    assert f'x {0.99 * between + 0.01 * look:.4f} on average' in said
