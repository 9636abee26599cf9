# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Faults planted in real training runs, and what the monitor says of them.

Rank 2 of four is the culprit wherever there is one: of four ranks one that
differs from the others can be told, of two it could not.
"""

from __future__ import annotations

import re
import tempfile
import time
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import DATA_SAMPLERS, HOOKS
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import BNStatsError, BNStatsMonitorHook
from mmdet_megdet.monitor import (
    CHECKS,
    Probe,
    decode,
    encode,
    gather,
    layer_rows,
)
from mmdet_megdet.sync_bn import MegDetSyncBN, function
from tests.data.bn_stack import (
    LAYERS,
    WIDTH,
    lines,
    stack_config,
    train_stack,
)
from tests.data.tiny_task import AmpOnCPU  # noqa: F401
from tests.distributed.ranks import run_ranks

CULPRIT = 2
RANKS = 4


ALL = list(range(RANKS))
# What to plant, the settings of its run, and what the first iteration has.
PLANTED, SETTINGS, FOUND = {}, {}, {}


def finds(*found, **settings):
    """Take a fault up.

    Args:
        *found: Check, layers, ranks, and a pattern of the message; of the
            findings that come first.
        **settings: Of the run that has it.
    """

    def add(plant):
        name = plant.__name__
        PLANTED[name], SETTINGS[name], FOUND[name] = plant, settings, found

    return add


@DATA_SAMPLERS.register_module(force=True)
class EveryRankAlike(DefaultSampler):
    """Deals the same images to all ranks."""

    def __iter__(self):
        return iter(range(len(self)))


@HOOKS.register_module(force=True)
class Plant(Hook):
    """Plants a fault once the model is complete."""

    def __init__(self, fault):
        self.plant = PLANTED[fault]

    def before_train_epoch(self, runner):
        self.plant(runner.model.module, runner.rank == CULPRIT)


def reduces(layer, reduce):
    """Let a layer's forward run with another all-reduce."""

    def forward(self, input):
        with mock.patch.object(function, 'all_reduce', reduce):
            return MegDetSyncBN._forward_synced(self, input)

    layer._forward_synced = types.MethodType(forward, layer)


@finds()
def nothing(model, culprit):
    pass


@finds(
    (
        'not-synchronised', ['third'], [CULPRIT],
        'batch statistics differ by about .* on rank 2',
    ),
    ('buffers-disagree', ['third'], [CULPRIT], 'by about'),
)  # fmt: skip
def one_rank_local(model, culprit):
    """It takes part in the all-reduce, and does not use what comes back."""
    real = function.all_reduce
    if culprit:
        reduces(
            model.norms['third'],
            lambda sums, *others: real(sums.clone(), *others),
        )


@finds(('not-synchronised', ['third'], ALL, "are not the group's, by about"))
def all_wrong(model, culprit):
    """All ranks agree, on sums that are not theirs."""
    real = function.all_reduce

    def reduce(sums, *others):
        real(sums, *others)
        sums[:WIDTH] += 1

    reduces(model.norms['third'], reduce)


@finds(
    ('bn-size', ['third'], [], 'over 1 rank, where bn_size=None asks for 4')
)
def nobody_to_talk_to(model, culprit):
    model.norms['third'].ranks_per_group = 1


# Of a number from 0.5 to 2.
@finds(('buffers-disagree', ['second'], [CULPRIT], 'about (1.2e-07|6e-08) on'))
def one_ulp(model, culprit):
    buffer = model.norms['second'].running_var

    def change(*_):
        buffer[4] = torch.nextafter(buffer[4], torch.tensor(9.0))

    if culprit:
        model.convs['third'].register_forward_hook(change)


@finds(
    ('same-data', ['stem'], ALL, 'Look at the sampler'),
    train_dataloader__sampler__type='EveryRankAlike',
)
def same_data(model, culprit):
    pass


@finds(
    ('eval-mode', ['stem', 'second'], [], 'norm_eval=False'),
    model__norm_eval=['stem', 'second'],
)
def norm_eval(model, culprit):
    pass


@finds(
    ('plain-batch-norm', ['third'], [], 'BatchNorm2d, of which each rank'),
    model__plain=['third'],
)
def plain_layer(model, culprit):
    pass


@finds(
    (
        'non-finite', ['third'], [CULPRIT],
        'first in the input of norms.third on rank 2; 2 of 4 layers',
    )
)  # fmt: skip
def nan_in_third(model, culprit):
    if culprit:
        model.convs['third'].register_forward_hook(
            lambda conv, args, output: output.index_fill(
                1, torch.tensor(2), torch.nan
            )
        )


@finds(('dead-channels', ['fourth'], [], 'up to 1 channels'))
def constant_channel(model, culprit):
    model.convs['fourth'].weight.data[5] = 0


@finds(
    ('collective-time', [], [CULPRIT], 'Rank 2 waits least'),
    default_hooks__bn_stats__max_collective_share=0.3,
)
def one_slow(model, culprit):
    if culprit:
        model.convs['second'].register_forward_hook(lambda *_: time.sleep(0.3))


@finds(
    (
        'call-order', ['second', 'third'], [CULPRIT],
        'number 2 is norms.second on rank 0 and norms.third on rank 2',
    )
)  # fmt: skip
def other_order(model, culprit):
    if culprit:
        model.calls = ['stem', 'third', 'second', 'fourth']


# 0.9 of what was planted, and a tenth of the batch's.
@finds(('running-var', ['second'], [], 'at most 9e.08'))
def exploding(model, culprit):
    model.norms['second'].running_var.fill_(1e9)


def train_with_faults(rank, world_size, folder):
    """One short run after another; what each raised."""
    raised = {}
    for name in PLANTED:
        settings = dict(
            train_cfg__max_epochs=1,
            custom_hooks=[dict(type='Plant', fault=name)],
            default_hooks__bn_stats__on_failure='raise',
            default_hooks__bn_stats__interval=3,
            log_level='ERROR',
        )
        try:
            train_stack(
                stack_config(Path(folder, name), **settings, **SETTINGS[name])
            )
        except BNStatsError as error:
            raised[name] = str(error)
    return raised


@pytest.fixture(scope='module')
def planted():
    """What each run raised on each rank, and its records."""
    with tempfile.TemporaryDirectory() as folder:
        raised = run_ranks(train_with_faults, RANKS, folder)
        records = {name: lines(Path(folder, name)) for name in PLANTED}
    return raised, records


LEVELS = {check.name: check.level for check in CHECKS}


@pytest.mark.parametrize('fault', PLANTED)
def test_what_is_found(planted, fault):
    found, expected = planted[1][fault][0]['findings'], FOUND[fault]
    if fault == 'other_order':
        # Mixed sums are found by other checks too.
        found = found[:1]
    for finding, (check, layers, ranks, text) in zip(
        found, expected, strict=True
    ):
        assert (finding['check'], finding['level']) == (check, LEVELS[check])
        assert finding['layers'] == [f'norms.{name}' for name in layers]
        assert finding['ranks'] == ranks
        assert re.search(text, finding['message'])


def test_errors_raise_the_same_on_every_rank_and_at_once(planted):
    raised, records = planted
    errors = [
        fault
        for fault, found in FOUND.items()
        if found and LEVELS[found[0][0]] == 'error'
    ]
    assert sorted(raised[0]) == sorted(errors)
    for fault in errors:
        assert {by_fault[fault] for by_fault in raised} == {raised[0][fault]}
        assert 'iteration 1' in raised[0][fault]
        assert len(records[fault]) == 1
    assert [line['iter'] for line in records['nothing']] == [1, 3]


def train_with_everything(rank, world_size, folder):
    """Two BN groups, accumulation, AMP, recomputation, EMA, validation."""
    cfg = stack_config(
        folder,
        model__bn_size=4,
        model__with_cp=True,
        train_cfg__val_interval=1,
        optim_wrapper__type='AmpOnCPU',
        optim_wrapper__accumulative_counts=3,
        custom_hooks=[dict(type='EMAHook')],
        default_hooks__bn_stats__on_failure='raise',
        default_hooks__bn_stats__interval=1,
    )
    cfg.val_dataloader = dict(cfg.train_dataloader)
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
        assert min(line['seconds']['collectives']) > 0
        assert [r['name'] for r in line['layers']] == [
            f'norms.{name}' for name in LAYERS
        ]
        for row in line['layers']:
            assert (row['state'], row['ranks_per_group']) == ('synced', 2)
            # The recomputed ones do not count; 2 x 2 images of 8 x 8.
            assert (row['calls'], row['count']) == (1, 256)
            assert 0 < row['between_share'] < 1


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


def between(ranks):
    """Straight from the definition, in float64, for some ranks' batches."""
    batches = [batch(r).movedim(1, 0).flatten(1) for r in ranks]
    whole = torch.cat(batches, 1)
    means = [x.mean(1) if x.numel() else 0 for x in batches]
    between = sum(
        x.shape[1] / whole.shape[1] * (mean - whole.mean(1)).square()
        for x, mean in zip(batches, means, strict=True)
    )
    return (between / whole.var(1, correction=0)).mean().item()


def test_the_numbers_are_what_they_are_called():
    results = run_ranks(measure, RANKS)
    rows = results[0]
    assert all(other == rows for other in results)
    synced, plain, uncalled = rows
    assert [r.state for r in rows] == ['synced', 'alone', 'uncalled']
    assert [r.ranks_per_group for r in rows] == [2, 1, 1]
    assert synced.between_share == pytest.approx(
        max(between([0, 1]), between([2, 3]))
    )
    assert plain.between_share == pytest.approx(between(range(4)))
    assert uncalled.between_share is None
    drifts = []
    for ranks in ([0, 1], [2, 3]):
        x = torch.cat([batch(r) for r in ranks]).movedim(1, 0).flatten(1)
        shift = (x.mean(1) - 0.25) / (1.5 + 1e-5) ** 0.5
        drifts.append(shift.square().mean().sqrt().item())
    assert synced.mean_drift == pytest.approx(max(drifts))
    assert (synced.count, plain.count) == (72, 72)
    assert synced.running_var_max > 1.5


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
