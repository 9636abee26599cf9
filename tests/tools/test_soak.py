# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/benchmark/soak.py: a short one, and that it sees what it looks for."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout

import pytest
import torch
from mmengine.dataset import DefaultSampler

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'benchmark'))  # as for a script there

import soak
import soak_report
import soak_task
from soak_report import MIB, Growth, Sample
from soak_run import Fault


@pytest.fixture(scope='module')
def short(tmp_path_factory):
    """What a soak of three epochs leaves; with seed 5 it has one SIGKILL."""
    folder = tmp_path_factory.mktemp('soak') / 'out'
    options = ['--iterations', '300', '--faults', '1', '--seed', '5']
    with redirect_stdout(io.StringIO()) as output:
        status = soak.main([*options, '--out', str(folder)])
    assert status == 0, output.getvalue()
    result = json.loads((folder / 'soak.json').read_text())
    return output.getvalue(), folder, result


@pytest.mark.slow
def test_a_kill_leaves_no_difference(short):
    output, _, result = short
    assert 'losses are the same to the bit' in output
    assert result['iterations'] == 300
    assert result['different'] == result['wrong'] == []
    assert result['undisturbed']['starts'] == 1
    assert result['with faults']['starts'] == 2
    (fault,) = result['faults']
    assert fault['signal'] == 'SIGKILL'
    assert fault['rank'] in (0, 1)
    # On a busy machine it comes some iterations after the 160th.
    assert 160 <= fault['iteration'] < 300
    assert fault['checkpoint'] in ('epoch_1.pth', 'epoch_2.pth')
    for name, starts in (('undisturbed', 1), ('with faults', 2)):
        for rank in ('0', '1'):
            processes = result[name]['resources'][rank]
            assert len(processes) == starts
            for first, *_ in processes:
                assert first['iterations'] == 100
                assert 100 * MIB < first['resident'] < 4096 * MIB
                assert first['open_files'] > 5


@pytest.mark.slow
def test_one_bit_is_a_difference(short):
    """In a weight, in the optimizer's state, in a loss."""
    _, folder, _ = short
    straight = folder / 'undisturbed' / 'epoch_3.pth'
    saved = torch.load(straight)
    saved['state_dict']['head.weight'][0, 0].nextafter_(torch.tensor(9.0))
    momentum = saved['optimizer']['state'][0]['momentum_buffer']
    momentum[0, 0, 0, 0].nextafter_(torch.tensor(9.0))
    saved['message_hub']['log_scalars']['train/loss'].data[0][7] += 1e-9
    other = folder / 'other.pth'
    torch.save(saved, other)
    assert soak_report.differences(straight, other) == [
        '.state_dict.head.weight',
        '.optimizer.state.0.momentum_buffer',
        '.losses',
    ]
    assert soak_report.differences(straight, straight) == []


def test_a_folder_that_is_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        soak.parse_args(['--out', str(tmp_path)])
    assert f'{tmp_path} is there already' in capsys.readouterr().err


def test_too_many_faults(tmp_path, capsys):
    """Said before anything is trained."""
    options = ['--iterations', '200', '--out', str(tmp_path / 'out')]
    assert soak.parse_args([*options, '--faults', '99']).faults == 99
    with pytest.raises(SystemExit):
        soak.parse_args([*options, '--faults', '100'])
    said = '200 iterations are too few for 100 faults'
    assert said in capsys.readouterr().err


def test_what_is_judged():
    """A difference, a SIGTERM without a checkpoint, growth; one line each."""
    kill = Fault('SIGKILL', 1, 50, 3.0, '')
    good = Fault('SIGTERM', None, 250, 1.0, 'iter_252.pth')
    bad = Fault('SIGTERM', None, 350, 1.0, 'epoch_3.pth')
    flat = Growth(0, 1000, 9 * MIB, 2)
    grown = [Growth(1, 2000, 65 * MIB, 0), Growth(1, 2000, 0, 9)]
    assert soak_report.judge([], [flat], [kill, good]) == []
    wrong = soak_report.judge(['.head'], [flat, *grown], [kill, bad])
    assert [line.partition(':')[0] for line in wrong] == [
        'different',
        'SIGTERM left no checkpoint inside the epoch',
        'grown',
        'grown',
    ]


def test_growth_is_from_100_to_the_last(tmp_path):
    """Process 7 comes again; process 8 does not reach 1,000 iterations."""
    lines = [
        (7, 100, 5, 3), (7, 200, 9, 9), (8, 100, 1, 1), (8, 500, 2, 2),
        (7, 100, 10, 4), (7, 200, 30, 9), (7, 1000, 25, 5),
    ]  # fmt: skip
    names = ('process', 'iterations', 'resident', 'open_files')
    (tmp_path / 'resources_1.jsonl').write_text(
        ''.join(json.dumps(dict(zip(names, line, strict=True))) + '\n'
                for line in lines)
    )  # fmt: skip
    samples = soak_report.read_samples(tmp_path)
    assert soak_report.growths(samples) == [Growth(1, 1000, 15, 1)]


def test_shown_samples():
    marks = [100, 200, 500, *range(1000, 13_000, 1000)]
    shown = soak_report.shown_samples([Sample(m, 0, 0) for m in marks])
    assert [sample.iterations for sample in shown] == [
        100, 200, 500, 1000, 2000, 5000, 10_000, 12_000
    ]  # fmt: skip


def batches(epoch: int) -> list[list[int]]:
    dataset = soak_task.SoakImages(400)
    sampler = soak_task.UnevenBatchSampler(DefaultSampler(dataset, seed=0), 4)
    sampler.configure(
        total_batch_size=8, unit_size=8, seed=0, rank=0, world_size=1
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def test_uneven_batches():
    """A hundred, each image once, some empty; others in the next epoch."""
    found = batches(0)
    sizes = [len(batch) for batch in found]
    assert len(found) == 100
    assert sorted(index for batch in found for index in batch) == list(
        range(400)
    )
    assert {0, 8} <= set(sizes)
    assert batches(0) == found
    assert batches(1) != found


def test_an_empty_batch_trains():
    """Its loss is zero, and has a gradient."""
    model = soak_task.SoakRegressor(4)
    batch = soak_task.soak_collate([])
    assert batch['inputs'].shape == (0, 3, 16, 16)
    loss = model(**batch, mode='loss')['loss']
    loss.backward()
    assert loss == 0
    assert all((p.grad == 0).all() for p in model.parameters())
