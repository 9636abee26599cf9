# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The benchmarks of the layer and of a training step."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

import cv2
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.benchmark import Measurement, TaskSpec

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.distributed.ranks import run_ranks
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import bench_sync_bn
import bench_train_step
import bn_costs
import bn_layers
import measuring
import training_steps

SHAPES = {'2x3x4x5': 3, '1x8x6x7': 8}
LAYERS = ['plain', 'ours', 'textbook']
CPU = torch.device('cpu')


def batch_of(*shape):
    return bn_costs.make_batch(shape, 'float32', 'contiguous', CPU)


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.fixture(scope='module')
def rows(tmp_path_factory):
    """What a run with two shapes on one and on two ranks leaves."""
    folder = tmp_path_factory.mktemp('bench') / 'out'
    shapes = [name.replace('x', ',') for name in SHAPES]
    words = ['--shapes', *shapes, '--repeats', '1', '--out', str(folder)]
    found = bench_sync_bn.main([*words, '--device', 'cpu'])
    content = json.loads((folder / 'sync_bn.json').read_text())
    assert content['rows'] == found
    # Not an empty sheet.
    assert cv2.imread(str(folder / 'sync_bn.png')).std() > 10
    return found


def test_every_layer_has_a_row(rows):
    assert [(r['ranks'], r['input'], r['layer']) for r in rows] == [
        (ranks, shape, layer)
        for ranks in (1, 2)
        for shape in SHAPES
        for layer in LAYERS
    ]


def test_bytes_sent_do_not_grow_with_the_ranks(rows):
    for row in rows:
        channels = SHAPES[row['input']]
        assert (
            row['bytes sent']
            == dict(
                plain='0 + 0',
                ours=f'{8 * (2 * channels + 1)} + {8 * 2 * channels}',
                textbook=f'{4 * 2 * channels} + {4 * 2 * channels}',
            )[row['layer']]
        )


def test_ratios_are_those_of_medians(one_rank, monkeypatch):
    seconds = dict(plain=[1, 2, 9], ours=[5, 8, 4], textbook=[10, 10, 10])
    task = TaskSpec('', '')
    measured = {k: Measurement(1, v, task) for k, v in seconds.items()}
    monkeypatch.setattr(measuring, 'take_turns', lambda *_, **__: measured)
    rows = bench_sync_bn.measure_layers(batch_of(2, 3, 4, 5), 3, None)
    assert [row['both ms'] for row in rows] == [2e3, 5e3, 10e3]
    assert [row['x plain'] for row in rows] == [1, 2.5, 5]
    assert [row['x textbook'] for row in rows] == [0.2, 0.5, 1]
    assert rows[0]['peak x plain'] == 1


def test_kinds_take_turns(one_rank):
    calls = []
    kinds = {name: lambda name=name: calls.append(name) for name in 'ABC'}
    measured = measuring.take_turns(kinds, 3, CPU, calls=2)
    # The round of warm-up is the first; each has another order.
    assert ''.join(calls) == 'AABBCC' + 'BBCCAA' + 'CCAABB' + 'AABBCC'
    assert {name: len(m.times) for name, m in measured.items()} == dict(
        A=3, B=3, C=3
    )
    assert all(m.number_per_run == 2 for m in measured.values())


class Hungry(nn.BatchNorm2d):
    """Allocates ten times its input for a moment."""

    def forward(self, input):
        input.new_empty(10 * input.numel())
        return super().forward(input)


def test_peak_memory_sees_a_momentary_allocation(one_rank):
    batch = batch_of(2, 8, 50, 50)
    peak = bn_costs.peak_memory(Hungry(8), batch)
    # Input and gradient of the output are there too; vectors are small.
    assert 0 <= peak - 12 * batch.x.nbytes < 0.01 * batch.x.nbytes


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
    batch = bn_costs.Batch(
        x[own].detach().float().requires_grad_(), dy[own].float()
    )
    layers = bn_layers.make_layers(4, CPU)
    for name in ('ours', 'textbook'):
        got = bn_costs.forward_backward(layers[name], batch)
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
def test_on_a_gpu():
    rows = bench_sync_bn.main(
        ['--shapes', '2,64,50,76', '--world-sizes', '1', '--repeats', '2']
    )
    named = {row['layer']: row for row in rows}
    assert list(named) == [*LAYERS, 'nn.SyncBatchNorm']
    assert named['ours']['host syncs'] == 0
    assert named['nn.SyncBatchNorm']['host syncs'] > 0
    assert float(named['ours']['graph replay ms']) > 0
    assert 'WRONG' not in named['ours']['largest error']


def models_of_the_training_step(rank, world_size):
    models = [
        training_steps.make_model(norm, CPU, training_steps.CONFIG)[0].module
        for norm in bench_train_step.norms(CPU).values()
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
    results = []
    layers = [kind(3) for kind in (nn.BatchNorm2d, bn_layers.MeetingBN)]
    layers.append(MegDetSyncBN(3))
    # Makes its group, by a collective of its own.
    layers[-1](x)
    for layer in layers:
        batch = bn_costs.Batch(x.requires_grad_(), dy)
        sent = bn_costs.sent_bytes(layer, batch)
        y, dx, *_ = bn_costs.forward_backward(layer, batch)
        results.append((sent, y.detach(), dx))
    return results


def test_ranks_meet_as_for_a_synchronised_layer_and_share_nothing():
    for plain, meeting, ours in run_ranks(meeting_and_not, 2):
        assert plain[0] == (0, 0)
        assert meeting[0] == ours[0] == (7 * 8, 6 * 8)
        assert torch.equal(meeting[1], plain[1])
        assert torch.equal(meeting[2], plain[2])
        assert not torch.allclose(ours[1], plain[1])


def images_of_two_ranks(rank, world_size):
    batch = training_steps.make_batch(Namespace(images=2, size=(96, 64)))
    boxes = torch.cat([s.gt_instances.bboxes for s in batch['data_samples']])
    return torch.stack(batch['inputs']), boxes


def test_ranks_of_the_training_step_have_images_of_their_own():
    (first, boxes), (second, _) = run_ranks(images_of_two_ranks, 2)
    assert first.shape == (2, 3, 64, 96)
    assert not torch.equal(first, second)
    assert (boxes[:, 2:] <= torch.tensor([96, 64])).all()


@pytest.mark.slow
def test_training_step(tmp_path, capsys):
    words = ['--steps', '2', '--images', '1', '--size', '64', '64']
    bench_train_step.main([*words, '--device', 'cpu', '--out', str(tmp_path)])
    content = json.loads((tmp_path / 'train_step.json').read_text())
    assert list(content['seconds']) == ['plain', 'meeting', 'synchronised']
    means = {name: sum(v) / 2 for name, v in content['seconds'].items()}
    ratio = means['synchronised'] / means['plain']
    assert content['ratios']['synchronised'] == pytest.approx(ratio)
    assert f'| {ratio:.3f} |' in capsys.readouterr().out
