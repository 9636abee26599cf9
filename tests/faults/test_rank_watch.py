# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
import torch.distributed as dist

from mmdet_megdet.faults import rank_watch
from mmdet_megdet.faults.rank_watch import Beat, RankWatch, Sight


@pytest.mark.parametrize(
    ('ranks', 'text'),
    [
        ([3], 'rank 3'),
        ([0, 1], 'ranks 0-1'),
        ([0, 1, 2, 5, 7, 8], 'ranks 0-2, 5, 7-8'),
    ],
)
def test_ranks_in_words(ranks, text):
    assert rank_watch._ranks(ranks) == text


def test_those_that_are_gone_come_first():
    watch = RankWatch(0, 128, 60, print)
    sights = {
        rank: Sight(Beat(place='iteration 7 (backward)'), gone=False)
        for rank in range(1, 128)
    }
    sights[5] = Sight(Beat(place='iteration 7 (loading data)'), gone=True)
    sights[9] = Sight(Beat(finished=True), gone=False)
    assert watch._describe(sights) == (
        'rank 5: no sign of life (killed, stopped or cut off), last heard of '
        'in iteration 7 (loading data); ranks 1-4, 6-8, 10-127: in iteration '
        '7 (backward); rank 9: done'
    )


@pytest.mark.parametrize(
    ('beat', 'gone', 'cause'),
    [
        (Beat(), False, False),
        (Beat(), True, True),
        (Beat(error='ValueError: bad'), False, True),
        # It, too, only lost somebody else.
        (Beat(error='RuntimeError: closed', follows=True), False, False),
    ],
)
def test_what_explains_an_end(beat, gone, cause):
    sights = {1: Sight(Beat(), False), 2: Sight(beat, gone)}
    assert rank_watch._cause(sights) == cause


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
    assert rank_watch.is_collective_error(error) == collective


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
