# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What one BatchNorm layer costs: time, memory, bytes, waiting."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

# Calls behind one another in a sample on a GPU, so that the host runs ahead
# of it as in training; a layer that waits for the GPU cannot.
CUDA_CALLS = 10
COLLECTIVES = (
    'all_reduce',
    'all_gather',
    'all_gather_into_tensor',
    'all_gather_single',
)


class Batch(NamedTuple):
    """Input and gradient of the output, both of one shape and layout."""

    x: Tensor
    dy: Tensor


def make_batch(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    channels_last: bool,
    device: torch.device,
) -> Batch:
    """Standard normal numbers that differ from rank to rank."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    generator = torch.Generator().manual_seed(dist.get_rank())
    x, dy = (
        torch.randn(shape, generator=generator)
        .to(device, dtype)
        .contiguous(memory_format=layout)
        for _ in range(2)
    )
    return Batch(x.requires_grad_(), dy)


def forward_backward(
    layer: nn.Module, batch: Batch, between: Callable = lambda: None
) -> tuple[Tensor, ...]:
    """Output, then the gradients of input, weight and bias.

    Args:
        between (Callable): Called once the forward is issued.
    """
    y = layer(batch.x)
    between()
    wanted = [batch.x, layer.weight, layer.bias]
    return y, *torch.autograd.grad(y, wanted, batch.dy)


def timed(layer: nn.Module, batch: Batch) -> tuple[float, float]:
    """Seconds of a forward and of a backward; ranks start together."""
    dist.barrier()
    if batch.x.is_cuda:
        return _timed_on_gpu(layer, batch)
    times = [time.perf_counter()]
    forward_backward(layer, batch, lambda: times.append(time.perf_counter()))
    times.append(time.perf_counter())
    return times[1] - times[0], times[2] - times[1]


def _timed_on_gpu(layer: nn.Module, batch: Batch) -> tuple[float, float]:
    torch.cuda.synchronize()
    calls = []
    for _ in range(CUDA_CALLS):
        begin, middle, end = (
            torch.cuda.Event(enable_timing=True) for _ in range(3)
        )
        begin.record()
        forward_backward(layer, batch, middle.record)
        end.record()
        calls.append((begin, middle, end))
    torch.cuda.synchronize()
    return (
        mean(begin.elapsed_time(middle) for begin, middle, _ in calls) / 1e3,
        mean(middle.elapsed_time(end) for _, middle, end in calls) / 1e3,
    )


def time_alternating(
    layers: dict[str, nn.Module],
    batch: Batch,
    repeats: int,
    advance: Callable[[], None],
) -> dict[str, Tensor]:
    """Time the layers in turn, A B C A B C, so that they share the weather.

    Returns:
        dict[str, Tensor]: Seconds, ``(repeats, 2)``: forward and backward
        of the rank that took longest.
    """
    for layer in layers.values():
        timed(layer, batch)
    samples = {name: [] for name in layers}
    for _ in range(repeats):
        for name, layer in layers.items():
            samples[name].append(timed(layer, batch))
        advance()
    seconds = {}
    for name, values in samples.items():
        slowest = torch.tensor(values, device=batch.x.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds[name] = slowest.cpu()
    return seconds


def peak_memory(layer: nn.Module, batch: Batch) -> int:
    """Most bytes alive at once in a forward and backward.

    Input and gradient of the output count, since they are there all along.
    On a GPU the rest is what the caching allocator hands out; on the CPU
    the profiler logs every allocation and release, those inside native
    operators too, and the running total is taken.
    """
    forward_backward(layer, batch)
    given = sum(tensor.nbytes for tensor in batch)
    if batch.x.is_cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_backward(layer, batch)
        torch.cuda.synchronize()
        return given + torch.cuda.max_memory_allocated() - before
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True) as profiler:
        forward_backward(layer, batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'trace.json'
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())['traceEvents']
    alive = most = 0
    memory = (event for event in events if event.get('name') == '[memory]')
    for event in sorted(memory, key=lambda event: event['ts']):
        alive += event['args']['Bytes']
        most = max(most, alive)
    return given + most


@contextmanager
def counted_collectives() -> Iterator[list[int]]:
    """Log the bytes of each tensor that this rank gives to a collective."""
    sent = []

    def spy(collective: Callable, position: int) -> Callable:
        def call(*args, **kwargs):
            sent.append(args[position].nbytes)
            return collective(*args, **kwargs)

        return call

    present = {
        name: getattr(dist, name)
        for name in COLLECTIVES
        if hasattr(dist, name)
    }
    try:
        for name, collective in present.items():
            # The gathers take the output first.
            setattr(dist, name, spy(collective, name != 'all_reduce'))
        yield sent
    finally:
        for name, collective in present.items():
            setattr(dist, name, collective)


def sent_bytes(layer: nn.Module, batch: Batch) -> tuple[int, int]:
    """Bytes that this rank gives to collectives, forward and backward."""
    with counted_collectives() as sent:
        forwards = []
        forward_backward(layer, batch, lambda: forwards.extend(sent))
        return sum(forwards), sum(sent) - sum(forwards)
