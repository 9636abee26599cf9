# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The layer on many ranks against one float64 BatchNorm on one process."""

from __future__ import annotations

import copy
import io
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.sync_bn import (
    MegDetSyncBN,
    bn_group,
    function,
    group_timeout,
    kernels,
)
from mmdet_megdet.sync_bn.function import SyncBatchNormFunction
from mmdet_megdet.sync_bn.kernels import plain
from tests.distributed.parity import (
    SUM,
    Case,
    U,
    parity_of_cases,
    plain_twin,
)
from tests.distributed.ranks import run_ranks

CHANNELS = 3

SHARES = {
    2: [(5, 0), (1, 7), (4, 4)],
    3: [(2, 0, 3)],
    4: [(3, 0, 5, 1), (0, 0, 0, 2)],
    8: [(1, 2, 0, 4, 1, 0, 3, 2), (0, 6, 0, 0, 0, 0, 0, 1)],
}
SPATIAL = [(), (7,), (4, 5), (3, 2, 4)]


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def strided(x):
    return x.transpose(2, 3).contiguous().transpose(2, 3)


def new_layer(**kwargs):
    return Case((), layer=kwargs).new_layer()


def assert_parity(world_size, cases):
    results = run_ranks(parity_of_cases, world_size, cases)
    for rank, errors_of_cases in enumerate(results):
        for case, errors in zip(cases, errors_of_cases, strict=True):
            # A rank with a share compares something.
            assert errors or not case.shares[rank]
            assert all(error <= 1 for error in errors.values()), (
                rank,
                case,
                errors,
            )


@pytest.mark.parametrize('world_size', SHARES)
def test_parity(world_size):
    """Uneven and empty shares, all dimensions, inputs far from zero."""
    assert_parity(
        world_size,
        [
            Case(shares, spatial, mean, layer=layer)
            for shares in SHARES[world_size]
            for spatial in SPATIAL
            for mean in (0.0, 1000.0)
            for layer in ({}, dict(momentum=None, eps=1e-3))
        ],
    )


def test_parity_of_other_settings_and_layouts():
    settings = dict(affine=False), dict(track_running_stats=False)
    cases = [
        Case((3, 2), mean=10.0, layer=layer)
        for layer in (*settings, settings[0] | settings[1])
    ]
    cases += [
        Case(shares, mean=1000.0, layout=layout)
        for shares in SHARES[2]
        for layout in (channels_last, strided)
    ]
    assert_parity(2, cases)


def test_parity_in_half_precision():
    """Statistics are taken in float32 of the half-precision values."""
    assert_parity(
        4,
        [
            Case((3, 0, 5, 1), mean=mean, dtype=dtype)
            for dtype in (torch.bfloat16, torch.float16)
            for mean in (0.0, 30.0)
        ],
    )


def layouts(rank, world_size):
    x = channels_last(torch.randn(2, 3, 4, 5)).requires_grad_()
    y = MegDetSyncBN(3)(x)
    y.sum().backward()
    return [
        v.is_contiguous(memory_format=torch.channels_last) for v in (y, x.grad)
    ]


def test_channels_last_stays_channels_last():
    assert run_ranks(layouts, 2) == [[True, True]] * 2


def autocast(rank, world_size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 1), new_layer())
    x = torch.randn(world_size, 2, 3, 4, 5)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        features = [model[0](part) for part in x]
        y = model[1](features[rank])
    y.float().sum().backward()
    true = plain_twin(new_layer(), 2)
    y_true = true(torch.cat(features).double()).chunk(world_size)[rank]
    error = (y.double() - y_true).abs() / (y_true.abs() + 1)
    mean_error = (model[1].running_mean - true.running_mean).abs()
    return (
        features[0].dtype,
        y.dtype,
        error.max().item(),
        mean_error.max().item(),
        model[1].running_mean.dtype,
    )


def test_under_autocast():
    for result in run_ranks(autocast, 2):
        feature_dtype, dtype, error, mean_error, buffer_dtype = result
        assert feature_dtype == dtype == torch.bfloat16
        assert buffer_dtype == torch.float32
        # The output's own rounding to bfloat16, and no more; Triton's
        # interpreter truncates.
        last = 2.0**-7 if kernels.interpreted() else 2.0**-8
        assert error <= last + 20 * U * 8
        # bfloat16 statistics would be off by up to 2**-8.
        assert mean_error <= SUM * 4


def collectives(rank, world_size):
    bn_group(None, torch.device('cpu'))
    seen = []
    all_reduce = dist.all_reduce

    def spy(tensor, *args, **kwargs):
        group = kwargs['group']
        seen.append((tensor.numel(), tensor.dtype, group is dist.group.WORLD))
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = spy
    x = torch.randn(3 * rank, 5, 4, 4, dtype=[torch.float32, torch.half][rank])
    layer = MegDetSyncBN(5)
    # Whether a rank's input needs a gradient is its own affair.
    y = layer(x.requires_grad_(bool(rank)))
    forward = list(seen)
    y.sum().backward()
    both = list(seen)
    layer.eval()(x)
    return forward, both[len(forward) :], len(seen) - len(both)


def test_one_collective_each_way_of_the_same_kind_on_every_rank():
    for forward, backward, in_eval in run_ranks(collectives, 2):
        assert forward == [(11, torch.float64, False)]
        assert backward == [(10, torch.float64, False)]
        assert in_eval == 0


def order_in_backward(rank, world_size):
    events = []
    start_all_reduce = function.start_all_reduce

    def start(*args):
        wait = start_all_reduce(*args)
        events.append('sent')

        def spy():
            wait()
            events.append('there')

        return spy

    def spied(name):
        work = getattr(plain, name)

        def spy(*args):
            work(*args)
            events.append(name)

        return spy

    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    y = MegDetSyncBN(3)(x)
    function.start_all_reduce = start
    for name in ('centre', 'input_gradient'):
        setattr(plain, name, spied(name))
    y.sum().backward()
    return events


def test_the_gradient_is_begun_while_the_sums_are_on_their_way():
    for events in run_ranks(order_in_backward, 2):
        assert events == ['sent', 'centre', 'there', 'input_gradient']


def nothing_anywhere(rank, world_size):
    layer = new_layer()
    before = copy.deepcopy(layer.state_dict())
    x = torch.empty(0, CHANNELS, 4, 4, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    unchanged = all(
        torch.equal(v, before[k]) for k, v in layer.state_dict().items()
    )
    return unchanged, x.grad.shape, layer.weight.grad, layer.bias.grad


def test_no_image_on_any_rank_changes_nothing():
    for unchanged, shape, dweight, dbias in run_ranks(nothing_anywhere, 2):
        assert unchanged
        assert shape == (0, CHANNELS, 4, 4)
        assert not dweight.any()
        assert not dbias.any()


def a_single_value(rank, world_size):
    layer = new_layer()
    x = torch.full((1 - rank, CHANNELS), 1e4 / 3, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    return y, x.grad, layer


def test_a_single_value_normalises_to_the_bias():
    (y, dx, layer), _ = run_ranks(a_single_value, 2)
    assert torch.equal(y[0], layer.bias)
    assert not dx.any()
    assert layer.running_var.tolist() == [1.0] * CHANNELS
    assert layer.running_mean.tolist() == pytest.approx([1e3 / 3] * CHANNELS)
    assert layer.num_batches_tracked.item() == 1


def recomputed(rank, world_size, use_reentrant):
    torch.manual_seed(rank)
    x = torch.randn(rank + 1, CHANNELS, 4, 4)
    results = []
    for run in (
        lambda layer, x: layer(x),
        lambda layer, x: checkpoint(layer, x, use_reentrant=use_reentrant),
    ):
        layer, leaf = new_layer(), x.clone().requires_grad_()
        run(layer, leaf).square().sum().backward()
        results.append([leaf.grad, layer.weight.grad, layer.state_dict()])
    return results


@pytest.mark.parametrize('use_reentrant', [True, False])
def test_recomputation_repeats_the_forward_without_its_side_effects(
    use_reentrant,
):
    for once, again in run_ranks(recomputed, 2, use_reentrant):
        assert torch.equal(once[0], again[0])
        assert torch.equal(once[1], again[1])
        for key, value in once[2].items():
            assert torch.equal(again[2][key], value), key
        assert again[2]['num_batches_tracked'].item() == 1


def copied(rank, world_size):
    layer = new_layer()
    x = torch.randn(2, CHANNELS, 4, 4)
    layer(x)
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    clones = copy.deepcopy(layer), torch.load(stored, weights_only=False)
    y = layer(x)
    return [torch.equal(clone(x), y) for clone in clones]


def test_copies_of_a_used_layer_synchronise():
    assert run_ranks(copied, 2) == [[True, True]] * 2


def group_facts(rank, world_size):
    device = torch.device('cpu')
    group = bn_group(None, device)
    with mock.patch.object(dist, 'all_reduce') as all_reduce:
        again = bn_group(None, device)
    facts = [group is again and not all_reduce.called]
    # A job that is initialised again gets a group of its own.
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    facts.append(bn_group(None, device) is None)
    dist.init_process_group(
        'gloo',
        store=dist.PrefixStore('again', store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=45),
    )
    again = bn_group(None, device)
    facts.append(again is not group)
    facts.append(group_timeout(again, device) == timedelta(seconds=45))
    return facts


def test_the_group_is_made_once_for_a_job():
    assert run_ranks(group_facts, 2) == [[True] * 4] * 2


def one_rank(rank, world_size):
    plain, layer = nn.BatchNorm2d(CHANNELS), MegDetSyncBN(CHANNELS)
    x = torch.randn(2, CHANNELS, 4, 4)
    return torch.equal(plain(x), layer(x)), bn_group(None, x.device)


def test_a_job_of_one_rank_is_plain_batch_norm():
    assert run_ranks(one_rank, 1) == [(True, None)]


def ddp_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, CHANNELS, 3, padding=1),
        new_layer(),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, 4, 3, padding=1),
        MegDetSyncBN(4),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, 1),
    ).double()


def train(model, ranks, own=slice(None)):
    """Three steps, each on eight images dealt to ranks, or on all."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        x = torch.randn(8, 2, 6, 6, dtype=torch.double, generator=generator)
        optimizer.zero_grad()
        images = torch.cat(x.chunk(ranks)[own])
        model(images).square().mean().backward()
        optimizer.step()


def train_ddp(rank, world_size):
    model = ddp_model()
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    train(wrapped, world_size, own=slice(rank, rank + 1))
    return model.state_dict()


def test_ddp_trains_as_one_process_on_the_whole_batch():
    states = run_ranks(train_ddp, 4)
    model = ddp_model()
    for name, child in model.named_children():
        if isinstance(child, MegDetSyncBN):
            setattr(model, name, plain_twin(child, 2))
    train(model, 1)
    for state in states:
        for key, value in model.state_dict().items():
            # float64 throughout: a few hundred roundings over three steps.
            torch.testing.assert_close(
                state[key], value, rtol=1e-12, atol=1e-12
            )


def upstream_on_cpu(rank, world_size):
    x = torch.randn(2, CHANNELS, 4, 4, requires_grad=True)
    try:
        nn.SyncBatchNorm(CHANNELS)(x)
        refused = None
    except ValueError as error:
        refused = str(error)
    MegDetSyncBN(CHANNELS)(x).square().sum().backward()
    return refused, x.grad is not None


def test_trains_on_cpus_where_upstream_refuses():
    """Fails should nn.SyncBatchNorm begin to take CPU inputs."""
    for refused, trained in run_ranks(upstream_on_cpu, 2):
        assert 'SyncBatchNorm expected input tensor to be on' in refused
        assert trained


def under_fake_tensors(rank, world_size, momentum, dtype, layout):
    """Raises where the layer looks at a tensor's value on the host."""
    dist.all_reduce = lambda *args, **kwargs: mock.Mock()
    with FakeTensorMode():
        layer = MegDetSyncBN(CHANNELS, momentum=momentum)
        x = torch.empty(2, CHANNELS, 4, 4, dtype=dtype)
        x = x.to(memory_format=layout).requires_grad_()
        layer(x).sum().backward()
        try:
            layer.running_mean[0].item()
        except DataDependentOutputException:
            return x.grad.shape
    return 'a read on the host went unnoticed'


@pytest.mark.parametrize('momentum', [0.1, None])
@pytest.mark.parametrize('dtype', [torch.float32, torch.half])
@pytest.mark.parametrize(
    'layout', [torch.contiguous_format, torch.channels_last]
)
def test_nothing_waits_for_the_host(momentum, dtype, layout):
    shapes = run_ranks(under_fake_tensors, 2, momentum, dtype, layout)
    assert shapes == [(2, CHANNELS, 4, 4)] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_nothing_waits_for_the_gpu():
    """Steps during which any wait for the GPU is an error."""
    dist.init_process_group(
        'nccl', store=dist.HashStore(), rank=0, world_size=1
    )
    group = dist.group.WORLD
    weight = torch.ones(CHANNELS, device='cuda', requires_grad=True)
    for dtype in (torch.float32, torch.half):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(2, CHANNELS, 4, 4, device='cuda', dtype=dtype)
            x = x.to(memory_format=layout).requires_grad_()
            for sync in ('default', 'error'):
                torch.cuda.set_sync_debug_mode(sync)
                y = SyncBatchNormFunction.apply(
                    x, weight, None, 1e-5, None, group
                )
                y.sum().backward()
                torch.cuda.set_sync_debug_mode('default')
    dist.destroy_process_group()
