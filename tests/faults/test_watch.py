# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest
import torch.distributed as dist

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.faults import is_collective_error, watch
from mmdet_megdet.faults.watch import Beat, RankWatch, describe, explained


def test_those_that_are_gone_come_first():
    beats = {rank: Beat(place='iteration 7') for rank in range(1, 99)}
    beats[5] = Beat(place='iteration 6', gone=True)
    beats[9] = Beat(finished=True)
    assert describe(beats) == (
        'rank 5: no sign of life (killed, stopped or cut off), last heard of '
        'in iteration 6; ranks 1-4, 6-8, 10-98: in iteration 7; rank 9: done'
    )


def test_whose_end_explains_that_of_others():
    lost = RuntimeError('[gloo/transport] Connection closed by peer')
    for error in (lost, dist.DistBackendError('NCCL error')):
        assert is_collective_error(error)
    for error in (RuntimeError('size mismatch'), ValueError('Timed out')):
        assert not is_collective_error(error)
    for beat in (Beat(gone=True), Beat(error='ValueError: bad')):
        assert explained({0: Beat(), 2: beat})
    # It, too, only lost somebody else.
    assert not explained({0: Beat(), 2: Beat(error=str(lost), follows=True)})


def test_a_torch_whose_store_cannot_be_cloned(monkeypatch):
    monkeypatch.setattr(watch, 'default_store', object)
    with pytest.raises(ConfigError, match='rank_watch=None'):
        RankWatch(0, 2, timeout=9.0, log=print).start()
