# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Faults planted in real training runs, and what the monitor says of them.

Rank 2 of four is the culprit wherever there is one: of four ranks one that
differs from the others can be told, of two it could not.
"""

from __future__ import annotations

import tempfile
import time
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import DATA_SAMPLERS, HOOKS, OPTIM_WRAPPERS
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import BNStatsError, BNStatsMonitorHook
from mmdet_megdet.monitor import Probe, decode, encode, gather, layer_rows
from mmdet_megdet.sync_bn import MegDetSyncBN, function
from mmdet_megdet.sync_bn.kernels import plain
from tests.data.bn_stack import (
    LAYERS,
    WIDTH,
    lines,
    stack_config,
    train_stack,
    world,
)
from tests.distributed.ranks import run_ranks

CULPRIT = 2
RANKS = 4


@DATA_SAMPLERS.register_module(force=True)
class EveryRankAlike:
    """Deals the same images to all ranks."""

    def __init__(self, dataset, shuffle, seed=None):
        self.number = len(dataset) // world()

    def __iter__(self):
        return iter(range(self.number))

    def __len__(self):
        return self.number

    def set_epoch(self, epoch):
        pass


@HOOKS.register_module(force=True)
class Plant(Hook):
    """Plants a fault once the model is complete."""

    # After an iteration ahead of the monitor; before training on its heels.
    priority = 'VERY_HIGH'

    def __init__(self, fault):
        self.fault = FAULTS[fault]

    def before_train_epoch(self, runner):
        model = runner.model.module
        if runner.epoch == 0:
            self.fault(model, runner.rank == CULPRIT)

    def after_train_iter(self, runner, *args, **kwargs):
        change = getattr(runner.model.module, 'after_iteration', None)
        if change is not None:
            change()


def replaced(layer, method, new):
    setattr(layer, method, types.MethodType(new, layer))


def local_statistics(layer, input):
    """Takes part in the all-reduce, and does not use what comes back."""
    all_reduce = function.all_reduce

    def reduce_a_copy(sums, *others):
        all_reduce(sums.clone(), *others)

    with mock.patch.object(function, 'all_reduce', reduce_a_copy):
        return MegDetSyncBN._forward_synced(layer, input)


def averaged_variances(layer, input):
    """The textbook's: the variance between the ranks is not in it."""
    unpack, pack = plain.unpack, plain.pack

    def pack_without_mean(count, mean, second):
        sums = pack(count, mean, second)
        channels = len(mean)
        sums[channels : 2 * channels] = second
        return sums

    def unpack_without_mean(sums):
        mean, _, count = unpack(sums)
        return mean, sums[len(mean) : -1] / count, count

    with (
        mock.patch.object(plain, 'pack', pack_without_mean),
        mock.patch.object(plain, 'unpack', unpack_without_mean),
        mock.patch.object(function, 'unpack', unpack_without_mean),
    ):
        return MegDetSyncBN._forward_synced(layer, input)


def one_rank_local(model, culprit):
    if culprit:
        replaced(model.norms['third'], '_forward_synced', local_statistics)


def all_average(model, culprit):
    replaced(model.norms['third'], '_forward_synced', averaged_variances)


def nobody_to_talk_to(model, culprit):
    model.norms['third'].ranks_per_group = 1


def groups_too_small(model, culprit):
    model.norms['third'].ranks_per_group = 2


def one_ulp(model, culprit):
    buffer = model.norms['second'].running_var

    def change():
        buffer[4] = torch.nextafter(buffer[4], torch.tensor(9.0))

    if culprit:
        model.after_iteration = change


def nothing(model, culprit):
    pass


def nan_in_third(model, culprit):
    if culprit:
        model.convs['third'].register_forward_hook(
            lambda conv, args, output: output.index_fill(
                1, torch.tensor(2), torch.nan
            )
        )


def constant_channel(model, culprit):
    model.convs['fourth'].weight.data[5] = 0


def one_slow(model, culprit):
    if culprit:
        model.convs['second'].register_forward_hook(lambda *_: time.sleep(0.3))


def other_order(model, culprit):
    if culprit:
        model.calls = ['stem', 'third', 'second', 'fourth']


def skipped(model, culprit):
    """Another layer keeps the culprit's collectives in step."""
    if culprit:
        third, stray = model.norms['third'], MegDetSyncBN(WIDTH)
        # DDP waits for these parameters' gradients.
        stray.weight, stray.bias = third.weight, third.bias
        third.forward = stray.forward


def exploding(model, culprit):
    model.norms['second'].running_var.fill_(1e9)


FAULTS = {
    f.__name__: f
    for f in (
        nothing, one_rank_local, all_average, nobody_to_talk_to,
        groups_too_small, one_ulp, nan_in_third, constant_channel, one_slow,
        other_order, skipped, exploding,
    )
}  # fmt: skip

RUNS = {
    'same_data': dict(train_dataloader__sampler__type='EveryRankAlike'),
    'norm_eval': dict(model__norm_eval=['stem', 'second']),
    'plain_layer': dict(model__plain=['third']),
    'one_slow': dict(default_hooks__bn_stats__max_collective_share=0.3),
}


def train_with_faults(rank, world_size, folder):
    """One short run after another; what each raised."""
    raised = {}
    for name in [*FAULTS, *RUNS]:
        fault = dict(type='Plant', fault=name if name in FAULTS else 'nothing')
        settings = dict(
            train_cfg__max_epochs=1,
            custom_hooks=[fault],
            default_hooks__bn_stats__on_failure='raise',
            default_hooks__bn_stats__interval=3,
            log_level='ERROR',
        )
        settings |= RUNS.get(name, {})
        try:
            train_stack(stack_config(Path(folder, name), **settings))
        except BNStatsError as error:
            raised[name] = str(error)
    return raised


@pytest.fixture(scope='module')
def planted():
    """What each run raised on each rank, and its records."""
    with tempfile.TemporaryDirectory() as folder:
        raised = run_ranks(train_with_faults, RANKS, folder)
        records = {
            name: lines(Path(folder, name)) for name in [*FAULTS, *RUNS]
        }
    return raised, records


# Errors and warnings of the first iteration: check, level, layers, ranks, and
# what the message says. More may follow where that stands last.
MORE = ...
ALL = list(range(RANKS))
FOUND = {
    'nothing': [],
    'one_rank_local': [
        ('not-synchronised', 'error', ['third'], [CULPRIT],
         'on rank 2 (norms.third: by about'),
        ('buffers-disagree', 'error', ['third'], [CULPRIT],
         'on rank 2 (norms.third: by about'),
    ],
    'all_average': [
        ('not-synchronised', 'error', ['third'], [],
         "normalised by statistics that are not the group's"),
    ],
    'nobody_to_talk_to': [
        ('not-synchronised', 'error', ['third'], [],
         'each rank alone, not over all images (4 ranks)'),
        ('bn-size', 'warning', ['third'], [], 'over 1 rank(s)'),
    ],
    'groups_too_small': [
        ('bn-size', 'warning', ['third'], [],
         'bn_size=None is asked for in 1 layer and, with 2 images per GPU, '
         'statistics are over 2 rank(s): norms.third'),
    ],
    'one_ulp': [
        ('buffers-disagree', 'error', ['second'], [CULPRIT], 'by about'),
    ],
    'same_data': [
        ('same-data', 'error', ['stem'], ALL, 'Look at the sampler'),
    ],
    'norm_eval': [
        ('eval-mode', 'warning', ['stem', 'second'], [],
         'norm_eval=False and frozen_stages=-1'),
    ],
    'plain_layer': [
        ('plain-batch-norm', 'warning', ['third'], [],
         '1 layer of BatchNorm2d'),
    ],
    'nan_in_third': [
        ('non-finite', 'error', ['third'], [CULPRIT],
         'first in the input of norms.third (BatchNorm call number 3 of the '
         'iteration) on rank 2; 2 of 4 layers'),
    ],
    'constant_channel': [
        ('dead-channels', 'warning', ['fourth'], [],
         'norms.fourth: 1 of them, the first is channel 5'),
    ],
    'exploding': [
        # 0.9 of what was planted, and a tenth of the batch's.
        ('running-var', 'warning', ['second'], [],
         'at most 9e+08, in norms.second'),
    ],
    'one_slow': [
        ('collective-time', 'warning', [], [CULPRIT], 'Rank 2 waits least'),
    ],
    'other_order': [
        ('call-order', 'error', ['second', 'third'], [CULPRIT],
         'number 2 is norms.second on rank 0 and norms.third on rank 2'),
        MORE,
    ],
    'skipped': [
        ('call-order', 'error', ['third', 'fourth'], [CULPRIT],
         'rank 2 does not call norms.third'),
        MORE,
    ],
}  # fmt: skip


def first_line(planted, fault):
    line = planted[1][fault][0]
    assert line['iter'] == 1
    return line


def rows_of(planted, fault, field):
    return [row[field] for row in first_line(planted, fault)['layers']]


@pytest.mark.parametrize('fault', [*FAULTS, *RUNS])
def test_what_is_found(planted, fault):
    found = [
        f
        for f in first_line(planted, fault)['findings']
        if f['level'] != 'info'
    ]
    expected = FOUND[fault]
    if MORE in expected:
        expected = expected[:-1]
        found = found[: len(expected)]
    for finding, (check, level, layers, ranks, text) in zip(
        found, expected, strict=True
    ):
        assert (finding['check'], finding['level']) == (check, level)
        assert finding['layers'] == [f'norms.{name}' for name in layers]
        assert finding['ranks'] == ranks
        assert text in finding['message']


def test_errors_raise_the_same_on_every_rank_and_at_once(planted):
    raised, records = planted
    errors = [
        fault
        for fault, found in FOUND.items()
        if found and found[0][1] == 'error'
    ]
    assert sorted(raised[0]) == sorted(errors)
    for fault in errors:
        assert {by_fault[fault] for by_fault in raised} == {raised[0][fault]}
        assert 'iteration 1' in raised[0][fault]
        assert len(records[fault]) == 1
    assert [line['iter'] for line in records['nothing']] == [1, 3]


def test_one_element_of_one_buffer_by_one_ulp(planted):
    (finding,) = first_line(planted, 'one_ulp')['findings']
    # Of a number from 0.5 to 2.
    told = [f'by about {2.0**-k:.2g}' in finding['message'] for k in (23, 24)]
    assert any(told), finding['message']


def test_the_states_of_layers(planted):
    assert rows_of(planted, 'norm_eval', 'state') == (
        ['eval', 'eval', 'synced', 'synced']
    )
    for fault in ('nobody_to_talk_to', 'plain_layer'):
        assert rows_of(planted, fault, 'state') == (
            ['synced', 'synced', 'alone', 'synced']
        )
        # What synchronising would change is told all the same.
        assert rows_of(planted, fault, 'between_share')[2] > 0
    assert rows_of(planted, 'plain_layer', 'type')[2] == 'BatchNorm2d'


def test_the_numbers_of_a_broken_iteration(planted):
    assert rows_of(planted, 'nan_in_third', 'mean_drift')[3] is None
    assert rows_of(planted, 'constant_channel', 'dead_channels') == [
        0,
        0,
        0,
        1,
    ]
    seconds = first_line(planted, 'one_slow')['seconds']
    assert len(seconds['iteration']) == RANKS
    assert min(seconds['collectives']) == seconds['collectives'][CULPRIT]


@OPTIM_WRAPPERS.register_module(force=True)
class BFloat16OnCPU(AmpOptimWrapper):
    """AmpOptimWrapper without its assertion that there is a GPU."""

    def __init__(self, **kwargs):
        OptimWrapper.__init__(self, **kwargs)
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
        self._scale_update_param = None
        self.cast_dtype = torch.bfloat16


def train_with_everything(rank, world_size, folder):
    """Two BN groups, accumulation, AMP, recomputation, EMA, validation."""
    cfg = stack_config(
        folder,
        model__bn_size=4,
        model__with_cp=True,
        train_cfg__val_interval=1,
        optim_wrapper__type='BFloat16OnCPU',
        optim_wrapper__accumulative_counts=3,
        custom_hooks=[dict(type='EMAHook')],
        default_hooks__bn_stats__on_failure='raise',
        default_hooks__bn_stats__interval=1,
    )
    cfg.val_dataloader = dict(
        batch_size=1,
        num_workers=0,
        dataset=dict(type='TinyImages', length=4),
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
    )
    cfg.val_cfg, cfg.val_evaluator = dict(), dict(type='TinyError')
    runner = train_stack(cfg)
    (ema,) = [h.ema_model for h in runner.hooks if isinstance(h, EMAHook)]
    return [
        (getattr(m, 'observer', None), len(m._forward_pre_hooks))
        for model in (runner.model, ema)
        for m in model.modules()
    ]


def test_with_everything_on(tmp_path):
    left = run_ranks(train_with_everything, RANKS, str(tmp_path))
    assert all(seam == (None, 0) for rank in left for seam in rank)
    records = lines(tmp_path)
    assert [line['iter'] for line in records] == [1, 2, 3, 4, 5, 6]
    for line in records:
        assert line['findings'] == []
        assert line['plan'] == dict(
            total_batch_size=24, accumulative_counts=3, bn_sizes={'4': 4}
        )
        assert [r['name'] for r in line['layers']] == [
            f'norms.{name}' for name in LAYERS
        ]
        for row in line['layers']:
            assert (row['state'], row['ranks_per_group']) == ('synced', 2)
            # The recomputed ones do not count; 2 x 2 images of 8 x 8.
            assert (row['calls'], row['count']) == (1, 256)
            assert 0 < row['between_share'] < 1
            assert min(row['collective_seconds']) > 0


def train_healthily(rank, world_size, folder):
    cfg = stack_config(
        folder,
        model__uneven=True,
        train_dataloader__batch_size=3,
        train_dataloader__dataset__length=3 * world_size * 110,
        # Few images: a channel may well be far from what it was.
        optim_wrapper__optimizer__lr=0.001,
        default_hooks__bn_stats__interval=1,
        default_hooks__bn_stats__on_failure='raise',
        default_hooks__logger__interval=100,
        randomness__diff_rank_seed=True,
    )
    train_stack(cfg)


@pytest.mark.slow
def test_a_healthy_run_raises_no_alarm(tmp_path):
    run_ranks(train_healthily, RANKS, str(tmp_path))
    records = lines(tmp_path)
    assert [line['iter'] for line in records] == list(range(1, 221))
    assert [f for line in records for f in line['findings']] == []
    counts = [line['layers'][0]['count'] for line in records]
    # Of up to four ranks x three images of 64 positions.
    assert set(counts) >= {0, 256, 512}


def batch(rank):
    """Of unequal size and distribution; rank 1 has none."""
    generator = torch.Generator().manual_seed(rank)
    images = (3, 0, 2, 1)[rank]
    x = torch.randn(images, 5, 4, 6, generator=generator) * (1 + rank) + rank
    return x.double()


def measure(rank, world_size):
    """What the numbers say of a synchronised and a plain layer."""
    model = nn.Sequential(
        MegDetSyncBN(5, bn_size=2), nn.BatchNorm2d(5), nn.BatchNorm2d(5)
    ).double()
    model[0].ranks_per_group = 2
    model[0].running_mean += 0.25
    model[0].running_var += 0.5
    probe = Probe(model)
    probe.attach()
    x = batch(rank)
    model[0](x)
    # As often as a rank likes: each keeps it to itself.
    for _ in range(1 + rank if len(x) else 0):
        model[1](x)
    probe.detach()
    vectors = gather(encode(probe), probe.device)
    return layer_rows(decode(vectors, probe, images_per_gpu=1))


def between_and_spread(ranks):
    """Straight from the definitions, in float64, for some ranks' batches."""
    batches = [batch(r).movedim(1, 0).flatten(1) for r in ranks]
    whole = torch.cat(batches, 1)
    mean, var = whole.mean(1), whole.var(1, correction=0)
    between = ratios = 0
    for x in batches:
        if x.numel():
            weight = x.shape[1] / whole.shape[1]
            between += weight * (x.mean(1) - mean).square()
            ratio = x.var(1, correction=0) / var
            ratios += weight * (ratio - 1).square()
    return (between / var).mean().item(), ratios.mean().sqrt().item()


def test_the_numbers_are_what_they_are_called():
    results = run_ranks(measure, RANKS)
    rows = results[0]
    assert all(other == rows for other in results)
    synced, plain, uncalled = rows
    assert [r.state for r in rows] == ['synced', 'alone', 'uncalled']
    assert [r.ranks_per_group for r in rows] == [2, 1, 1]

    # Moments travel in float32, 2^-24 of each; means are below 5 and
    # standard deviations above 1.
    bound = dict(abs=1e-5)
    groups = [between_and_spread([0, 1]), between_and_spread([2, 3])]
    for row, expected in (
        (synced, groups),
        (plain, [between_and_spread(range(4))]),
    ):
        shares, spreads = zip(*expected, strict=True)
        assert row.between_share == pytest.approx(max(shares), **bound)
        assert row.var_spread == pytest.approx(max(spreads), **bound)

    # What is not compared between ranks has float64's precision.
    drifts = []
    for ranks in ([0, 1], [2, 3]):
        x = torch.cat([batch(r) for r in ranks]).movedim(1, 0).flatten(1)
        shift = (x.mean(1) - 0.25) / (1.5 + 1e-5) ** 0.5
        log = (x.var(1) / 1.5).log()
        drifts.append([v.square().mean().sqrt().item() for v in (shift, log)])
    assert synced.mean_drift == pytest.approx(max(d[0] for d in drifts))
    assert synced.var_drift == pytest.approx(max(d[1] for d in drifts))
    assert (synced.count, plain.count) == (72, 72)
    assert synced.running_var_max > 1.5
    assert uncalled.between_share is None


def watch_other_layers(rank, world_size):
    model = nn.Sequential(MegDetSyncBN(3), nn.BatchNorm2d(3 + rank))
    runner = types.SimpleNamespace(hooks=[], model=model)
    with pytest.raises(ConfigError) as error:
        BNStatsMonitorHook().before_train(runner)
    return str(error.value)


def test_ranks_with_different_layers_are_refused_on_all():
    first, second = run_ranks(watch_other_layers, 2)
    assert first == second
    assert '1 is BatchNorm2d of 3 channels, number 2 on rank 0 and ' in first
