# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the private names of torch are used for still holds."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from mmdet_megdet.runtime.comm_hook import register_comm_hook
from mmdet_megdet.upstream.torch_names import (
    default_store,
    group_timeout,
    in_recomputation,
    inlined_only,
    is_low_rank,
    outside_graphs,
    recorded_operations,
    small_nccl_options,
    synchronised_batch_norm,
)

NINE = timedelta(seconds=9)


@pytest.fixture
def gloo(tmp_path):
    """A process group of one rank."""
    store = dist.FileStore(str(tmp_path / 'store'), 1)
    dist.init_process_group(
        'gloo', rank=0, world_size=1, store=store, timeout=NINE
    )
    yield
    dist.destroy_process_group()


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


def test_gradients_of_low_rank(gloo):
    for comm_hook, low_rank in (('powerSGD', True), ('fp16_compress', False)):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        register_comm_hook(model, comm_hook)
        assert is_low_rank(model) is low_rank
        assert not is_low_rank(model.module)


def test_a_forward_that_backward_repeats_is_told_from_the_first():
    told = []

    def note(x):
        told.append(in_recomputation())
        return x.sin()

    for use_reentrant in (True, False):
        x = torch.ones(2, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(
            note, x, use_reentrant=use_reentrant
        )
        y.sum().backward()
    assert told == [False, True] * 2


def test_the_timeout_of_a_group(gloo):
    cpu = torch.device('cpu')
    assert group_timeout(dist.group.WORLD, cpu) == NINE
    # Groups and backends that tell none.
    for backend in ({}, dict(options=None), dict(options=SimpleNamespace())):
        group = SimpleNamespace(
            _get_backend=lambda _, own=backend: SimpleNamespace(**own)
        )
        assert group_timeout(group, cpu) is None
    assert group_timeout(object(), cpu) is None


class NCCLOptions:
    """Of a torch with NCCL, which one for CPUs does not have."""

    def __init__(self):
        self.config = SimpleNamespace(max_ctas=None)
        self._timeout = timedelta(seconds=600)


def test_nccl_gets_a_small_communicator(monkeypatch):
    if dist.is_nccl_available():
        assert small_nccl_options(2, NINE).config.max_ctas == 2
    nccl = SimpleNamespace(Options=NCCLOptions)
    monkeypatch.setattr(dist, 'ProcessGroupNCCL', nccl, raising=False)
    for timeout in (NINE, None):
        options = small_nccl_options(2, timeout)
        assert options.config.max_ctas == 2
        assert options._timeout == (timeout or timedelta(seconds=600))
    # Built for an NCCL without such settings.
    nccl.Options = SimpleNamespace
    assert small_nccl_options(2, NINE) is None


def test_synchronised_batch_norm_is_that_of_gpus(gloo):
    layer = torch.nn.SyncBatchNorm(2)
    # It comes as far as the kernels, which CPUs do not have.
    with pytest.raises(NotImplementedError, match='batch_norm_stats'):
        synchronised_batch_norm(layer, torch.randn(2, 2, 1, 1))


def test_operations_are_recorded_with_what_they_read_and_write():
    x, y, z = torch.ones(3, 2)
    with recorded_operations() as operations:
        torch.add(x, y, out=z)
        x.mul_(2)
    (add, added, summed), (times, factors, products) = operations
    assert (add, times) == ('add', 'mul_')
    assert [id(t) for t in added] == [id(x), id(y)]
    assert {id(t) for t in summed} == {id(z)}
    assert [id(t) for t in factors] == [id(x)]
    assert {id(t) for t in products} == {id(x)}


def test_default_store(gloo):
    """A clone of it has what ranks have set, and its own timeout."""
    clone = default_store().clone()
    clone.set_timeout(timedelta(seconds=0.2))
    default_store().set('a', 'b')
    assert clone.get('a') == b'b'
    with pytest.raises(RuntimeError):
        clone.get('other')
