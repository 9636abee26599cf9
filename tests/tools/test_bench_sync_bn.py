# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks of layers, of a training step and of annotations."""

from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import bench_annotations
import bench_sync_bn
import bench_train_step
import bn_costs
import bn_layers
import measuring
import pytest
import torch
import torch.distributed as dist
from mmengine.visualization import Visualizer
from torch import nn

from tests.distributed.ranks import run_ranks
from tests.tools.command import ROOT, TOOLS, cells, run

LAYERS = ['plain', 'ours', 'textbook']
CPU = torch.device('cpu')


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def measured_layers(ranks, *words):
    args = bench_sync_bn.parse_args(['--repeats', '1', '--shapes', *words])
    return measuring.run_ranks(bench_sync_bn.measure, ranks, 1, args)


def test_every_layer_has_a_row():
    rows = measured_layers(2, '2,3,4,5', '1,8,6,7')
    shapes = ['2x3x4x5'] * 3 + ['1x8x6x7'] * 3
    assert [row['input'] for row in rows] == shapes
    assert [row['layer'] for row in rows] == LAYERS * 2
    for plain, _ours, textbook in (rows[:3], rows[3:]):
        assert plain['x plain'] == textbook['x textbook'] == 1
        assert textbook['x plain'] == textbook['ms'] / plain['ms']
        assert plain['peak x plain'] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_on_a_gpu():
    named = {row['layer']: row for row in measured_layers(1, '2,64,50,76')}
    assert list(named) == [*LAYERS, 'nn.SyncBatchNorm']
    assert named['ours']['host syncs'] == 0
    assert named['nn.SyncBatchNorm']['host syncs'] > 0
    assert float(named['ours']['graph replay ms']) > 0
    assert 'WRONG' not in named['ours']['largest error']


class Hungry(nn.BatchNorm2d):
    """Allocates ten times its input for a moment."""

    def forward(self, input):
        input.new_empty(10 * input.numel())
        return super().forward(input)


def test_peak_memory_sees_a_momentary_allocation(one_rank):
    size = 2, 8, 50, 50
    batch = bench_sync_bn.make_batch(size, 'float32', 'contiguous', CPU)
    peak = bn_costs.peak_memory(Hungry(8), batch)
    # Input and gradient of the output are there too; vectors are small.
    assert 0 <= peak - 12 * batch.x.nbytes < 0.01 * batch.x.nbytes


def steps_of(rank, world_size):
    """Output and gradient of the layers that synchronise, or of all."""
    batch = bench_sync_bn.make_batch(
        (2, 4, 6, 6), 'float32', 'contiguous', CPU
    )
    layer = bn_layers.SwitchedBN(4)
    found = []
    for way in LAYERS[world_size > 1 :]:
        layer.way = way
        found.append(bn_costs.forward_backward(layer, batch)[:2])
    return [torch.stack(step).detach() for step in found]


@pytest.mark.parametrize('world_size', [1, 2])
def test_layers_agree_on_benign_inputs(world_size):
    # Values up to 4 near mean 0 and variance 1: some 100 roundings of 2^-24,
    # relative to at most 4^2 in the gradient.
    bound = 100 * 16 * 2.0**-24
    for first, *others in run_ranks(steps_of, world_size):
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=bound)


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
    reduced = Mock(side_effect=dist.all_reduce)
    curves = Visualizer.add_scalars
    drawn = create_autospec(curves, side_effect=curves)
    monkeypatch.setattr(dist, 'all_reduce', reduced)
    monkeypatch.setattr(Visualizer, 'add_scalars', drawn)
    clock = SimpleNamespace(
        process_time=lambda: float(reduced.call_count + drawn.call_count)
    )
    monkeypatch.setattr(bench_train_step, 'time', clock)
    monkeypatch.setenv('LOCAL_RANK', '0')
    words = '--ranks 1 --updates 2 --images 1 --size 64 64 --compare'
    args = bench_train_step.parse_args([*words.split(), compare])
    measured = bench_train_step.measure(CPU, args)
    assert list(measured) == kinds
    assert measured[kinds[0]] == [0, 0]
    assert min(measured[kinds[1]]) > 0


def test_passes_and_launches_are_those_of_the_docs():
    # Triton reads its variable when it is imported.
    done = run(TOOLS / 'benchmark' / 'bn_traffic.py', cold=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout in (ROOT / 'docs' / 'sync_bn.md').read_text()
    triton = [row for row in cells(done.stdout) if row[0] == 'Triton']
    assert len(triton) == 4
    for *_, passes, launches in triton:
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
    heading, *rows = cells(text)
    # In three dtypes and two layouts: plain, ours and textbook.
    layers, steps = rows[: 3 * 2 * 3], rows[3 * 2 * 3 :]
    found = [dict(zip(heading, row, strict=True)) for row in layers]
    # A share of the bound, and what it is the error of.
    ours = [row for row in found if row['layer'] == 'ours']
    assert len(ours) == 6
    assert all(0 <= float(r['largest error'].split()[0]) <= 1 for r in ours)
    assert [row[0] for row in steps] == ['update', 'plain', 'ours']


@pytest.mark.slow
def test_bench_annotations(capsys):
    # So small a file is not what the bounds are for.
    assert bench_annotations.main(['--images', '300']) in (0, 1)
    rows = cells(capsys.readouterr().out)
    assert [row[0] for row in rows] == ['run', *bench_annotations.RUNS]
    assert all(float(cell) > 0 for row in rows[1:] for cell in row[1:])
