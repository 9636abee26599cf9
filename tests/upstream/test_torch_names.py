# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the private names of torch are used for still holds."""

from collections import OrderedDict
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from mmdet_megdet.runtime.comm_hook import register_comm_hook
from mmdet_megdet.upstream.torch_names import (
    copy_all,
    copy_versions,
    default_store,
    inlined_only,
    is_low_rank,
    lerp_all,
    maximum_all,
    outside_graphs,
)


@outside_graphs
def twice(x):
    torch._dynamo.graph_break()  # what is inside makes no more of them
    return 2 * x


@inlined_only
def twice_or_not(x, wanted):
    return twice(x) if wanted else x


def test_a_call_outside_graphs_is_one_break():
    x = torch.ones(2)
    for wanted, breaks in ((True, 1), (False, 0)):
        counters.clear()
        step = torch.compile(
            lambda x, wanted=wanted: twice_or_not(x + 1, wanted) - 1,
            backend='eager',
        )
        expected = twice_or_not(x + 1, wanted) - 1
        assert all(torch.equal(step(x), expected) for _ in range(2))
        assert sum(counters['graph_break'].values()) == breaks


def test_they_write_in_place():
    a, b = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    for write, expected in (
        (lambda: lerp_all([a], [b], 0.5), [2.0, 3.0]),
        (lambda: maximum_all([a], [b]), [3.0, 3.0]),
        (lambda: copy_all([a], [b]), [3.0, 1.0]),
    ):
        write()
        assert a.tolist() == expected


def test_no_tensors_are_nothing_to_do():
    copy_all([], [])
    lerp_all([], [], 0.5)
    maximum_all([], [])


@pytest.mark.parametrize(
    ('comm_hook', 'low_rank'), [('powerSGD', True), ('fp16_compress', False)]
)
def test_gradients_of_low_rank(tmp_path, comm_hook, low_rank):
    store = torch.distributed.FileStore(str(tmp_path / 'store'), 1)
    torch.distributed.init_process_group(
        'gloo', rank=0, world_size=1, store=store
    )
    try:
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        register_comm_hook(model, comm_hook)
        assert is_low_rank(model) is low_rank
        assert not is_low_rank(model.module)
    finally:
        torch.distributed.destroy_process_group()


def test_default_store(tmp_path):
    """A clone of it has what ranks have set, and its own timeout."""
    store = dist.FileStore(str(tmp_path / 'store'), 1)
    dist.init_process_group('gloo', store=store, rank=0, world_size=1)
    try:
        clone = default_store().clone()
        clone.set_timeout(timedelta(seconds=0.2))
        default_store().set('a', 'b')
        assert clone.get('a') == b'b'
        with pytest.raises(RuntimeError):
            clone.get('other')
    finally:
        dist.destroy_process_group()


def test_copy_versions():
    class Third(torch.nn.BatchNorm1d):
        _version = 3

        def _load_from_state_dict(self, state, prefix, metadata, *others):
            self.loaded = metadata.get('version')
            super()._load_from_state_dict(state, prefix, metadata, *others)

    state = Third(2).state_dict()
    copy, norm = OrderedDict(state), Third(2)
    norm.load_state_dict(copy)
    assert norm.loaded is None
    copy_versions(copy, state)
    norm.load_state_dict(copy)
    assert norm.loaded == 3
    copy_versions({}, {})  # of no model
