# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
import torch.distributed as dist

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.faults import RankWatch, is_collective_error, rank_watch
from mmdet_megdet.faults.rank_watch import Beat, Sight, describe


def test_those_that_are_gone_come_first():
    sights = {
        rank: Sight(Beat(place='iteration 7 (backward)'), gone=False)
        for rank in range(1, 128)
    }
    sights[5] = Sight(Beat(place='iteration 7 (loading data)'), gone=True)
    sights[9] = Sight(Beat(finished=True), gone=False)
    assert describe(sights) == (
        'rank 5: no sign of life (killed, stopped or cut off), last heard of '
        'in iteration 7 (loading data); ranks 1-4, 6-8, 10-127: in iteration '
        '7 (backward); rank 9: done'
    )


@pytest.mark.parametrize('torchrun', [True, False])
def test_a_store_that_does_not_answer(monkeypatch, torchrun):
    monkeypatch.delenv('TORCHELASTIC_RUN_ID', raising=False)
    if torchrun:
        monkeypatch.setenv('TORCHELASTIC_RUN_ID', '1')
    holder = 'torchrun' if torchrun else 'rank 0'
    assert f'{holder} is gone, stopped or cut off' in describe(None)


@pytest.mark.parametrize(
    ('beat', 'gone', 'explains'),
    [
        (Beat(), False, False),
        (Beat(), True, True),
        (Beat(error='ValueError: bad'), False, True),
        # It, too, only lost somebody else.
        (Beat(error='RuntimeError: closed', follows=True), False, False),
    ],
)
def test_what_explains_the_end_of_others(beat, gone, explains):
    assert Sight(beat, gone).explains is explains


@pytest.mark.parametrize(
    ('error', 'collective'),
    [
        (RuntimeError('[gloo/transport] Connection closed by peer'), True),
        (dist.DistBackendError('NCCL error'), True),
        (RuntimeError('size mismatch'), False),
        (ValueError('Timed out'), False),
    ],
)
def test_errors_of_collectives(error, collective):
    assert is_collective_error(error) == collective


def test_one_process_needs_no_store():
    lines = []
    watch = RankWatch(0, 1, 60, lines.append)
    watch.start()
    watch.at('iteration 3 (forward)')
    watch.fail(RuntimeError('Timed out\nin detail'))
    watch.stop()
    assert lines == [
        'rank 0 of 1 fails in iteration 3 (forward): RuntimeError: Timed out'
    ]


def test_a_torch_whose_store_cannot_be_cloned(monkeypatch):
    monkeypatch.setattr(rank_watch, 'default_store', object)
    watch = RankWatch(0, 2, timeout=9.0, log=print)
    with pytest.raises(ConfigError, match='rank_watch=None'):
        watch.start()
