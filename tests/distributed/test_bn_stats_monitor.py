# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Faults planted in real training runs, and what the monitor says of them.

Rank 2 of four is the culprit wherever there is one: of four ranks one that
differs from the others can be told, of two it could not.
"""

import re
import time
from unittest import mock
from unittest.mock import Mock

import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import DATA_SAMPLERS, HOOKS
from torch import nn

from mmdet_megdet import monitor
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import BNStatsError, BNStatsMonitorHook
from mmdet_megdet.sync_bn import MegDetSyncBN, function
from tests.data.bn_stack import LAYERS, WIDTH, lines, train_stack
from tests.data.tiny_run import curves_of, hook_of, log_of
from tests.distributed.ranks import run_ranks

CULPRIT, RANKS = 2, 4
ALL = list(range(RANKS))


@DATA_SAMPLERS.register_module(force=True)
class Alike(DefaultSampler):
    """Deals each rank the images of another."""

    def __init__(self, *args, ranks, **kwargs):
        super().__init__(*args, **kwargs)
        self.rank = ranks[self.rank]


class SomeSyncBatchNorm(nn.BatchNorm2d):
    """Another library's, by its name."""


def reduces(layer, reduce):
    """Let a layer's forward run with another all-reduce."""
    forward = layer._forward_synced

    def patched(input):
        with mock.patch.object(function, 'all_reduce', reduce):
            return forward(input)

    layer._forward_synced = patched


def wrong_statistics(model, rank):
    """Another fault in each layer."""
    real = function.all_reduce
    buffer = model.norms['stem'].running_var

    def one_ulp(*_):
        buffer[4] = torch.nextafter(buffer[4], torch.tensor(9.0))

    def in_vain(sums, *others):
        real(sums.clone(), *others)

    def wrong_on_all(sums, *others):
        real(sums, *others)
        sums[:WIDTH] += 1

    if rank == 1:
        model.convs['third'].register_forward_hook(one_ulp)
    model.norms['second'].ranks_per_group = 1
    if rank == CULPRIT:
        reduces(model.norms['third'], in_vain)
    reduces(model.norms['fourth'], wrong_on_all)
    model.norms['fourth'].bn_size = 6


def groups_of_two(model, rank):
    if rank == 3:
        model.norms['stem'].running_mean[0] += 0.5
        model.norms['second'].running_mean[0] += 0.5
    if rank == CULPRIT:
        model.norms['third'].running_var[1] = torch.nan


def nan_and_same_images(model, rank):
    if rank == CULPRIT:
        model.convs['third'].bias.data[2] = torch.nan


def other_order(model, rank):
    if rank != CULPRIT:
        model.calls = ['stem', 'third', 'second', 'fourth']


def fewer_layers(model, rank):
    if rank == CULPRIT:
        model.calls = ['stem', 'second', 'third', 'third']


def called_again(model, rank):
    again = ['second', 'third']
    model.calls = LAYERS + (again[::-1] if rank == CULPRIT else again)


def warnings(model, rank):
    """A slow rank, a constant channel, an explosion, and the settings."""
    if rank == CULPRIT:
        model.convs['second'].register_forward_hook(lambda *_: time.sleep(1))
    model.norms['second'].running_var.fill_(1e9)
    model.norms['fourth'].__class__ = SomeSyncBatchNorm
    model.convs['fourth'].weight.data[5] = 0


def all_constant(model, rank):
    """The same on all ranks, and no sign of the same images."""
    for conv in model.convs.values():
        conv.weight.data.zero_()


# Check, layers, ranks and a pattern of the message, in the first iteration.
FOUND = {
    wrong_statistics: [
        ('not-synchronised', ['third'], [CULPRIT],
         'batch statistics differ by about .* on rank 2'),
        ('not-synchronised', ['fourth'], ALL, "are not the group's, by about"),
        # Of a number from 0.5 to 2.
        ('buffers-disagree', ['stem'], [1], 'about (1.2e-07|6e-08) on'),
        ('buffers-disagree', ['third'], [CULPRIT], 'by about'),
        ('bn-size', ['second'], [],
         'over 1 rank, where bn_size=None asks for 4'),
        ('bn-size', ['fourth'], [],
         'over 4 ranks, where bn_size=6 asks for 3'),
    ],
    # Of two that differ nobody can tell who is right.
    groups_of_two: [
        ('non-finite', ['third'], [CULPRIT],
         'the running statistics of norms.third on rank 2; 1 of 4 layers'),
        ('buffers-disagree', ['stem', 'second'], [2, 3], 'by about 0.45 on'),
    ],
    nan_and_same_images: [
        ('non-finite', ['third'], [CULPRIT],
         'first in the input of norms.third on rank 2; 2 of 4 layers'),
        ('same-data', ['stem'], ALL, 'Look at the sampler'),
    ],
    other_order: [
        ('call-order', ['third', 'second'], [CULPRIT],
         'number 2 is norms.third on rank 0 and norms.second on rank 2'),
    ],
    fewer_layers: [
        ('call-order', ['fourth'], [CULPRIT],
         'number 4 is norms.fourth on rank 0 and nothing more on rank 2'),
    ],
    called_again: [('call-order', [], [CULPRIT], 'some are called again')],
    warnings: [
        ('same-data', ['stem'], [1, 3], 'Some ranks see the same images'),
        ('collective-time', [], [CULPRIT], 'Rank 2 waits least'),
        ('eval-mode', ['stem'], [], 'norm_eval=False'),
        ('plain-batch-norm', ['third'], [], 'BatchNorm2d, of which each rank'),
        ('plain-batch-norm', ['fourth'], [], 'synchronises in its own way'),
        ('dead-channels', ['fourth'], [], 'up to 1 channels'),
        # 0.9 of what was planted, and a tenth of the batch's.
        ('running-var', ['second'], [], 'at most 9e.08'),
    ],
    all_constant: [('dead-channels', LAYERS, [], 'up to 6 channels')],
}  # fmt: skip
# Where mixed sums show besides.
MIXED = (other_order, fewer_layers, called_again)
SETTINGS = {
    groups_of_two: dict(
        model__bn_size=4, model__plain=['fourth'], model__norm_eval=['fourth']
    ),
    nan_and_same_images: dict(
        train_dataloader__sampler=dict(type='Alike', ranks=[0] * 4)
    ),
    fewer_layers: dict(model_wrapper_cfg__find_unused_parameters=True),
    warnings: dict(
        model__norm_eval=['stem'],
        model__plain=['third', 'fourth'],
        train_dataloader__sampler=dict(type='Alike', ranks=[0, 1, 2, 1]),
        default_hooks__bn_stats__max_collective_share=0.05,
    ),
}


@HOOKS.register_module(force=True)
class Plant(Hook):
    """Plants a fault once the model is complete."""

    def __init__(self, fault):
        (self.plant,) = (plant for plant in FOUND if plant.__name__ == fault)

    def before_train_epoch(self, runner):
        self.plant(runner.model.module, runner.rank)


def train_with_faults(rank, world_size, folder):
    """One short run after another; what each raised."""
    raised = {}
    for fault in FOUND:
        name = fault.__name__
        try:
            train_stack(
                folder / name,
                train_cfg__max_epochs=1,
                custom_hooks=[dict(type='Plant', fault=name)],
                default_hooks__bn_stats__on_failure='raise',
                default_hooks__bn_stats__interval=3,
                log_level='ERROR',
                **SETTINGS.get(fault, {}),
            )
        except BNStatsError as error:
            raised[name] = str(error)
    return raised


def test_what_is_found(tmp_path):
    """Every check finds its fault; errors raise, alike on all and at once."""
    by_rank = run_ranks(train_with_faults, RANKS, tmp_path)
    raised = by_rank[0]
    assert by_rank == [raised] * RANKS
    checks, states, orders = set(), {}, {}
    for fault, expected in FOUND.items():
        first, *later = lines(tmp_path / fault.__name__)
        states[fault] = [row['state'] for row in first['layers']]
        orders[fault] = [row['name'] for row in first['layers']]
        for finding, (check, layers, ranks, text) in zip(
            first['findings'], expected, strict=fault not in MIXED
        ):
            assert finding['check'] == check
            assert finding['layers'] == [f'norms.{name}' for name in layers]
            assert finding['ranks'] == ranks
            assert re.search(text, finding['message'])
            checks.add((check, finding['level']))
        if fault in (warnings, all_constant):
            assert fault.__name__ not in raised
            assert [line['iter'] for line in later] == [3]
        else:
            text = f'iteration 1: {expected[0][0]}: '
            assert text in raised[fault.__name__]
            assert not later
    levels = {(check.name, check.level) for check in monitor.CHECKS}
    assert checks == levels | {('same-data', 'warning')}
    assert states[warnings] == ['eval', 'synced', 'alone', 'synced']
    # That of rank 0.
    assert orders[other_order][1:3] == ['norms.third', 'norms.second']


def train_with_everything(rank, world_size, folder):
    """Two BN groups, accumulation, AMP, recomputation, EMA, validation.

    And ranks that have fewer images, or none. What is left in the model and
    its average is returned.
    """
    runner = train_stack(
        folder,
        model__bn_size=6,
        model__with_cp=True,
        model__uneven=True,
        train_dataloader__batch_size=3,
        train_dataloader__dataset__length=3 * world_size * 110,
        optim_wrapper__type='AmpOnCPU',
        optim_wrapper__accumulative_counts=3,
        # Few images: a channel may well be far from what it was.
        optim_wrapper__optimizer__lr=0.001,
        custom_hooks=[dict(type='EMAHook')],
        default_hooks__bn_stats__on_failure='raise',
        default_hooks__bn_stats__interval=1,
        randomness__diff_rank_seed=True,
    )
    return [
        (getattr(m, 'observer', None), len(m._forward_pre_hooks))
        for model in (runner.model, hook_of(runner, EMAHook).ema_model)
        for m in model.modules()
    ]


@pytest.mark.slow
def test_a_healthy_run_raises_no_alarm(tmp_path):
    left = run_ranks(train_with_everything, RANKS, tmp_path)
    assert all(seam == (None, 0) for rank in left for seam in rank)
    records = lines(tmp_path)
    between, collectives = (
        dict(curves_of(tmp_path, f'bn_{name}_share'))
        for name in ('between', 'collective')
    )
    assert [line['iter'] for line in records] == list(range(1, 221))
    counts = set()
    for line in records:
        assert line['findings'] == []
        for row, name in zip(line['layers'], LAYERS, strict=True):
            assert row['name'] == f'norms.{name}'
            assert (row['state'], row['ranks_per_group']) == ('synced', 2)
            # The recomputed ones do not count.
            assert row['calls'] == 1
            # Of up to two ranks x three images of 64 positions.
            assert row['count'] < 256 or 0 < row['between_share'] < 1
            counts.add(row['count'])
        shares = [row['between_share'] for row in line['layers']]
        if None not in shares:
            assert between[line['iter']] == pytest.approx(sum(shares) / 4)
        spent = line['seconds']['collectives'], line['seconds']['iteration']
        shares = [part / whole for part, whole in zip(*spent, strict=True)]
        assert min(shares) > 0
        assert collectives[line['iter']] == pytest.approx(max(shares))
    assert counts >= {0, 128, 256}
    said = '4 BatchNorm layers, 4 synced over 2 ranks; verdict: sound.'
    assert f'iteration 1: {said}' in log_of(tmp_path)


def batch(rank):
    """Of unequal size and distribution; rank 1 has none."""
    generator = torch.Generator().manual_seed(rank)
    images = (3, 0, 2, 1)[rank]
    x = torch.randn(images, 5, 4, 6, generator=generator) * (1 + rank) + rank
    return x.double()


def measure(rank, world_size):
    """What the numbers say of a synchronised and a plain layer.

    And what is said of a model whose layers differ from rank to rank.
    """
    synced, plain = MegDetSyncBN(5, bn_size=2), nn.BatchNorm2d(5)
    model = nn.Sequential(synced, plain, nn.BatchNorm2d(5)).double()
    synced.ranks_per_group = 2
    synced.running_mean += 0.25
    synced.running_var += 0.5
    probe, x = monitor.Probe(model), batch(rank)
    probe.attach()
    synced(x)
    # As often as a rank likes: each keeps it to itself.
    for _ in range(1 + rank if len(x) else 0):
        plain(x)
    probe.detach()
    vectors = monitor.gather(monitor.encode(probe))
    other = nn.Sequential(MegDetSyncBN(3), nn.BatchNorm2d(3 + rank))
    with pytest.raises(ConfigError) as error:
        BNStatsMonitorHook().before_train(Mock(hooks=[], model=other))
    rows = monitor.layer_rows(monitor.decode(vectors, probe, images_per_gpu=1))
    return rows, str(error.value)


def defined(ranks):
    """Between-rank share and drift of the ranks' batches, by definition."""
    batches = [batch(r).movedim(1, 0).flatten(1) for r in ranks]
    whole = torch.cat(batches, 1)
    between = sum(
        x.shape[1] / whole.shape[1] * (x.mean(1) - whole.mean(1)).square()
        for x in batches
        if x.numel()
    )
    drift = (whole.mean(1) - 0.25) / (1.5 + 1e-5) ** 0.5
    share = (between / whole.var(1, correction=0)).mean().item()
    return share, drift.square().mean().sqrt().item()


def test_the_numbers_are_what_they_are_called():
    by_rank = run_ranks(measure, RANKS)
    assert by_rank == [by_rank[0]] * RANKS
    (synced, plain, uncalled), refusal = by_rank[0]
    # The largest of the BN groups'.
    share, drift = map(max, zip(defined([0, 1]), defined([2, 3]), strict=True))
    assert synced.between_share == pytest.approx(share)
    assert synced.mean_drift == pytest.approx(drift)
    assert plain.between_share == pytest.approx(defined(range(4))[0])
    assert uncalled.between_share is None
    assert synced.running_var_max > 1.5
    assert (synced.count, plain.count) == (72, 72)
    rows = [(r.state, r.ranks_per_group) for r in (synced, plain, uncalled)]
    assert rows == [('synced', 2), ('alone', 1), ('uncalled', 1)]
    assert '1 is BatchNorm2d of 3 channels, number 2 on rank 0 and ' in refusal
