# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks: what they measure, and that they run by themselves."""

from __future__ import annotations

import csv
import json
import sys

import cv2
import pytest
import torch
import torch.distributed as dist
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN
from mmdet_megdet.sync_bn.groups import bn_group
from tests.distributed.ranks import run_ranks
from tests.tools.command import TOOLS, run

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_sync_bn
import bench_train_step
import bn_layers
import bn_measure
import training_steps

BENCHMARK = TOOLS / 'benchmark'
SHAPES = {'2x3x4x5': 3, '1x8x6x7': 8}
LAYERS = ['plain', 'ours', 'textbook']
CPU = torch.device('cpu')


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.fixture(scope='module')
def result(tmp_path_factory):
    """What a run with two shapes on one and on two ranks leaves."""
    folder = tmp_path_factory.mktemp('bench') / 'out'
    shapes = [name.replace('x', ',') for name in SHAPES]
    done = run(
        BENCHMARK / 'bench_sync_bn.py',
        *('--shapes', *shapes, '--repeats', '1', '--out', folder),
    )
    assert done.returncode == 0, done.stdout
    rows = json.loads((folder / 'sync_bn.json').read_text())['rows']
    return done.stdout, folder, rows


def test_every_layer_has_a_row(result):
    found = [(r['world_size'], r['shape'], r['layer']) for r in result[2]]
    assert found == [
        (ranks, shape, layer)
        for ranks in (1, 2)
        for shape in SHAPES
        for layer in LAYERS
    ]


def test_bytes_sent_do_not_grow_with_the_ranks(result):
    for row in result[2]:
        channels = SHAPES[row['shape']]
        sent = row['sent_forward_bytes'], row['sent_backward_bytes']
        assert (
            sent
            == dict(
                plain=(0, 0),
                ours=(8 * (2 * channels + 1), 8 * 2 * channels),
                textbook=(4 * 2 * channels, 4 * 2 * channels),
            )[row['layer']]
        )


def test_table_csv_and_figure_hold_every_row(result):
    printed, folder, rows = result
    with (folder / 'sync_bn.csv').open() as file:
        written = list(csv.DictReader(file))
    assert [{k: str(v) for k, v in row.items()} for row in rows] == written
    for row in rows:
        cells = [row['shape'], row['layer'], f'{row["both_ms"]:.2f}']
        assert any(
            all(cell in line for cell in cells)
            for line in printed.splitlines()
        ), (cells, printed)
    figure = cv2.imread(str(folder / 'sync_bn.png'))
    assert figure.std() > 10  # not an empty sheet


def test_ratios_are_those_of_medians(one_rank, monkeypatch):
    seconds = dict(
        plain=torch.tensor([[1.0, 2.0], [2.0, 1.0], [9.0, 9.0]]),
        ours=torch.tensor([[3.0, 4.0], [1.0, 8.0], [9.0, 0.0]]),
        textbook=torch.tensor([[6.0, 5.0]] * 3),
    )
    monkeypatch.setattr(bench_sync_bn, 'time_alternating', lambda *_: seconds)
    settings = bench_sync_bn.Settings([], 'float32', False, 3, False)
    rows = bench_sync_bn.measure_shape(
        CPU, (2, 3, 4, 5), settings, None, lambda: None
    )
    plain, ours, _ = rows
    times = 'forward_ms', 'backward_ms', 'both_ms'
    # `both` is the median of the sums, not the sum of the medians.
    assert [plain[t] for t in times] == pytest.approx([2e3, 2e3, 3e3])
    assert [ours[t] for t in times] == pytest.approx([3e3, 4e3, 9e3])
    assert ours['forward_to_plain'] == pytest.approx(3 / 2)
    assert ours['backward_to_plain'] == pytest.approx(4 / 2)
    assert ours['both_to_plain'] == pytest.approx(9 / 3)
    assert ours['both_to_textbook'] == pytest.approx(9 / 11)
    assert plain['peak_to_plain'] == 1


def test_layers_take_turns(one_rank):
    calls = []

    class Logged(nn.BatchNorm2d):
        def forward(self, input):
            calls.append(self.label)
            return super().forward(input)

    layers = {name: Logged(3) for name in 'ABC'}
    for name, layer in layers.items():
        layer.label = name
    batch = bn_measure.make_batch((2, 3, 4, 5), torch.float32, False, CPU)
    seconds = bn_measure.time_alternating(layers, batch, 2, lambda: None)
    assert ''.join(calls) == 'ABC' * 3  # with the warm-up
    assert {v.shape for v in seconds.values()} == {(2, 2)}
    assert all((v > 0).all() for v in seconds.values())


class Hungry(nn.BatchNorm2d):
    """Allocates ten times its input for a moment."""

    def forward(self, input):
        input.new_empty(10 * input.numel())
        return super().forward(input)


def test_peak_memory_sees_a_momentary_allocation(one_rank):
    batch = bn_measure.make_batch((2, 8, 50, 50), torch.float32, False, CPU)
    peak = bn_measure.peak_memory(Hungry(8), batch)
    # Input and gradient of the output are there too; vectors are small.
    assert 0 <= peak - 12 * batch.x.nbytes < 0.01 * batch.x.nbytes


def test_collectives_are_put_back(one_rank):
    before = dist.all_reduce
    with bn_measure.counted_collectives() as sent:
        dist.all_reduce(torch.zeros(3))
        dist.all_gather([torch.zeros(5)], torch.zeros(5))
    assert sent == [12, 20]
    assert dist.all_reduce is before


def outputs_and_gradients(rank, world_size):
    """Largest errors of the layers against one BatchNorm on all ranks."""
    whole = torch.Generator().manual_seed(0)
    x, dy = torch.randn(2, 2 * world_size, 4, 6, 6, generator=whole).double()
    plain = nn.BatchNorm2d(4).double()
    x.requires_grad_()
    y = plain(x)
    y.backward(dy)
    errors = {}
    own = slice(2 * rank, 2 * rank + 2)
    batch = bn_measure.Batch(
        x[own].detach().float().requires_grad_(), dy[own].float()
    )
    layers = bn_layers.make_layers(4, CPU)
    for name in ('ours', 'textbook'):
        got = bn_measure.forward_backward(layers[name], batch)
        errors[name] = [
            (a - b).abs().max().item()
            for a, b in zip(got, (y[own], x.grad[own]), strict=False)
        ]
    synchronises = isinstance(layers['ours'], MegDetSyncBN)
    return errors, synchronises


@pytest.mark.parametrize('world_size', [1, 2])
def test_synchronised_layers_agree_on_benign_inputs(world_size):
    for errors, synchronises in run_ranks(outputs_and_gradients, world_size):
        assert synchronises
        # Values up to 4 near mean 0 and variance 1: some 100 roundings of
        # 2^-24, relative to at most 4^2 in the gradient.
        for name, error in errors.items():
            assert max(error) < 100 * 16 * 2.0**-24, (name, error)


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        (['--shapes', '2,3'], "'2,3' is not N,C,H,W"),
        (['--shapes', '1,3,1,1'], 'one value per channel'),
        (['--repeats', '0'], '0 must be 1 or more'),
        (
            ['--device', 'cuda', '--world-sizes', '99'],
            '99 rank(s) need a GPU each',
        ),
    ],
)
def test_bad_options_are_refused(words, reason, capsys):
    with pytest.raises(SystemExit):
        bench_sync_bn.parse_args(words)
    assert reason in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_on_a_gpu(tmp_path):
    bench_sync_bn.main(
        [
            *('--shapes', '2,64,50,76', '--world-sizes', '1'),
            *('--repeats', '2', '--out', str(tmp_path)),
        ]
    )
    rows = json.loads((tmp_path / 'sync_bn.json').read_text())['rows']
    named = {row['layer']: row for row in rows}
    assert list(named) == [*LAYERS, 'nn.SyncBatchNorm']
    assert named['ours']['host_syncs'] == 0
    assert named['nn.SyncBatchNorm']['host_syncs'] > 0
    assert named['ours']['graph_failure'] is None
    assert all(row['bandwidth_share'] > 0 for row in rows)


def models_of_the_training_step(rank, world_size):
    models = [
        training_steps.make_model(norm, CPU)[0].module
        for norm in bench_train_step.NORMS.values()
    ]
    count = [
        sum(isinstance(m, MegDetSyncBN) for m in model.modules())
        for model in models
    ]
    return count, *(model.state_dict() for model in models)


def test_all_models_of_the_training_step_begin_alike():
    ((count, plain, *others),) = run_ranks(models_of_the_training_step, 1)
    assert count == [0, 0, 20 + 8]  # backbone and FPN
    for other in others:
        assert plain.keys() == other.keys()
        for name, value in plain.items():
            assert torch.equal(value, other[name]), name


def meeting_and_not(rank, world_size):
    torch.manual_seed(rank)
    x, dy = torch.randn(2, 2, 3, 4, 4)
    bn_group(None, CPU)
    results = []
    with bn_measure.counted_collectives() as sent:
        for kind in (nn.BatchNorm2d, bn_layers.MeetingBN, MegDetSyncBN):
            before = len(sent)
            layer = kind(3)
            batch = bn_measure.Batch(x.requires_grad_(), dy)
            y, dx, *_ = bn_measure.forward_backward(layer, batch)
            results.append((sent[before:], y.detach(), dx))
    return results


def test_ranks_meet_as_for_a_synchronised_layer_and_share_nothing():
    for plain, meeting, ours in run_ranks(meeting_and_not, 2):
        assert not plain[0]
        assert meeting[0] == ours[0] == [7 * 8, 6 * 8]
        assert torch.equal(meeting[1], plain[1])
        assert torch.equal(meeting[2], plain[2])
        assert not torch.allclose(ours[1], plain[1])


def test_boxes_of_the_training_step_lie_in_the_figure(one_rank):
    batch = training_steps.make_batch(3, (96, 64))
    number = 0
    for figure, sample in zip(
        batch['inputs'], batch['data_samples'], strict=True
    ):
        assert figure.shape == (3, 64, 96)
        boxes = sample.gt_instances.bboxes
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert (boxes[:, 2:] <= torch.tensor([96, 64])).all()
        assert set(sample.gt_instances.labels.tolist()) <= {0, 1, 2}
        number += len(boxes)
    assert number > 0


@pytest.mark.slow
def test_training_step(tmp_path):
    done = run(
        BENCHMARK / 'bench_train_step.py',
        *('--steps', '2', '--images', '1', '--size', '64', '64'),
        *('--out', tmp_path),
    )
    assert done.returncode == 0, done.stdout
    content = json.loads((tmp_path / 'train_step.json').read_text())
    for name, values in content['seconds'].items():
        assert len(values) == 2
        assert content['medians'][name] == pytest.approx(sum(values) / 2)
    ratio = content['medians']['synchronised'] / content['medians']['plain']
    assert content['ratios']['synchronised'] == pytest.approx(ratio)
    assert f'{ratio:.3f}' in done.stdout
