# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks of layers and of a training step."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from mmengine.visualization import Visualizer
from torch import nn

from tests.distributed.ranks import run_ranks
from tests.tools.command import ROOT, TOOLS, run

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_annotations
import bench_sync_bn
import bench_train_step
import bn_costs
import bn_layers
import measuring

LAYERS = ['plain', 'ours', 'textbook']
CPU = torch.device('cpu')


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize('ranks', [1, 2])
def test_every_layer_has_a_row(ranks):
    words = ['--shapes', '2,3,4,5', '1,8,6,7', '--repeats', '1']
    args = bench_sync_bn.parse_args(words)
    rows = measuring.run_ranks(bench_sync_bn.measure, ranks, 1, args)
    assert [(r['ranks'], r['input'], r['layer']) for r in rows] == [
        (ranks, shape, layer)
        for shape in ('2x3x4x5', '1x8x6x7')
        for layer in LAYERS
    ]
    for plain, _ours, textbook in (rows[:3], rows[3:]):
        assert plain['x plain'] == textbook['x textbook'] == 1
        assert textbook['x plain'] == textbook['ms'] / plain['ms']
        assert plain['peak x plain'] == 1


class Hungry(nn.BatchNorm2d):
    """Allocates ten times its input for a moment."""

    def forward(self, input):
        input.new_empty(10 * input.numel())
        return super().forward(input)


def test_peak_memory_sees_a_momentary_allocation(one_rank):
    batch = bench_sync_bn.make_batch(
        (2, 8, 50, 50), 'float32', 'contiguous', CPU
    )
    peak = bn_costs.peak_memory(Hungry(8), batch)
    # Input and gradient of the output are there too; vectors are small.
    assert 0 <= peak - 12 * batch.x.nbytes < 0.01 * batch.x.nbytes


def outputs_and_gradients(rank, world_size):
    """Largest errors of the layers against one BatchNorm on all ranks."""
    whole = torch.Generator().manual_seed(0)
    x, dy = torch.randn(2, 2 * world_size, 4, 6, 6, generator=whole).double()
    x.requires_grad_()
    y = nn.BatchNorm2d(4).double()(x)
    y.backward(dy)
    own = slice(2 * rank, 2 * rank + 2)
    batch = bn_costs.Batch(
        x[own].detach().float().requires_grad_(), dy[own].float()
    )
    layer, errors = bn_layers.SwitchedBN(4), {}
    for layer.way in ('ours', 'textbook'):
        got = bn_costs.forward_backward(layer, batch)
        errors[layer.way] = [
            (a - b).abs().max().item()
            for a, b in zip(got, (y[own], x.grad[own]), strict=False)
        ]
    return errors


@pytest.mark.parametrize('world_size', [1, 2])
def test_synchronised_layers_agree_on_benign_inputs(world_size):
    for errors in run_ranks(outputs_and_gradients, world_size):
        # Values up to 4 near mean 0 and variance 1: some 100 roundings of
        # 2^-24, relative to at most 4^2 in the gradient.
        for name, error in errors.items():
            assert max(error) < 100 * 16 * 2.0**-24, (name, error)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_on_a_gpu():
    args = bench_sync_bn.parse_args(['--shapes', '2,64,50,76'])
    rows = measuring.run_ranks(bench_sync_bn.measure, 1, 1, args)
    named = {row['layer']: row for row in rows}
    assert list(named) == [*LAYERS, 'nn.SyncBatchNorm']
    assert named['ours']['host syncs'] == 0
    assert named['nn.SyncBatchNorm']['host syncs'] > 0
    assert float(named['ours']['graph replay ms']) > 0
    assert 'WRONG' not in named['ours']['largest error']


@pytest.mark.slow
@pytest.mark.parametrize(
    ('compare', 'kinds'),
    [
        ('sync', ['plain', 'ours']),
        ('monitor', ['between looks', 'a look']),
        ('noise', ['not measured', 'measured']),
    ],
)
def test_kinds_of_updates(compare, kinds, one_rank, monkeypatch):
    """By a clock that counts what only the latter does."""
    calls = []

    def counted(holder, name):
        function = getattr(holder, name)

        def call(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(holder, name, call)

    counted(dist, 'all_reduce')
    # Curves of what was found.
    counted(Visualizer, 'add_scalars')
    clock = SimpleNamespace(process_time=lambda: float(len(calls)))
    monkeypatch.setattr(bench_train_step, 'time', clock)
    monkeypatch.setenv('LOCAL_RANK', '0')
    words = ['--compare', compare, '--ranks', '1', '--updates', '2']
    words += ['--images', '1', '--size', '64', '64']
    args = bench_train_step.parse_args(words)
    measured = bench_train_step.measure(CPU, args)
    assert list(measured) == kinds
    assert measured[kinds[0]] == [0, 0]
    assert min(measured[kinds[1]]) > 0


def test_passes_and_launches_are_those_of_the_docs():
    # Triton reads its variable when it is imported.
    done = run(TOOLS / 'benchmark' / 'bn_traffic.py', cold=True)
    assert done.returncode == 0, done.stdout
    table = [n for n in done.stdout.splitlines() if n.startswith('|')]
    assert len(table) == 12
    docs = (ROOT / 'docs' / 'sync_bn.md').read_text()
    assert '\n'.join(table) in docs
    for line in table[2:]:
        name, *_, passes, launches = (c.strip() for c in line.split('|')[1:-1])
        if name == 'Triton':
            # The limit; and no more launches than were allowed.
            assert (passes, int(launches) <= 14) == ('8', True)


@pytest.mark.nightly
def test_gpu_report_on_a_cpu(tmp_path):
    config = ROOT / 'configs' / 'megdet' / 'bccd_r18_fpn.py'
    done = run(
        *(TOOLS / 'benchmark' / 'gpu_report.sh', tmp_path / 'report.md'),
        cold=True,
        MEGDET_REPORT_ON_CPU='1',
        LAYERS='--shapes 1,8,6,7 --repeats 1',
        STEP=f'--updates 1 --images 1 --size 64 64 --config {config}',
    )
    assert done.returncode == 0, done.stdout
    text = (tmp_path / 'report.md').read_text()
    assert text in done.stdout
    rows = [line.split(' | ') for line in text.splitlines() if '| ' in line]
    heading, *layers = [row for row in rows if len(row) > 5]
    error = heading.index('largest error |')
    # In three dtypes and two layouts: plain, ours and textbook.
    assert len(layers) == 3 * 2 * 3
    ours = [row for row in layers if row[4] == 'ours']
    # A share of the bound, and what it is the error of.
    assert all(0 <= float(row[error].split()[0]) <= 1 for row in ours)
    steps = [row[0].strip('| ') for row in rows if len(row) <= 5]
    assert steps == ['update', 'plain', 'ours']


@pytest.mark.slow
def test_bench_annotations(capsys):
    # So small a file is not what the bounds are for.
    assert bench_annotations.main(['--images', '300']) in (0, 1)
    said = capsys.readouterr().out
    rows = [line.split(' | ') for line in said.splitlines() if '| ' in line]
    assert [r[0].strip('| ') for r in rows] == ['run', *bench_annotations.RUNS]
    assert all(float(cell.strip(' |')) > 0 for r in rows[1:] for cell in r[1:])
