# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a BatchNorm layer costs besides time: memory, and more on a GPU."""

from __future__ import annotations

import json
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from mmdet_megdet.sync_bn import kernels

# Full-size tensors that a BatchNorm has to move if no cache helps it:
# forward reads the input for the statistics and again to normalise it, and
# writes the output; backward reads input and gradient twice, and writes one.
PASSES = 3 + 5
COPY_BYTES = 1 << 30


class Batch(NamedTuple):
    """Input and gradient of the output, both of one shape and layout."""

    x: Tensor
    dy: Tensor


def forward_backward(layer: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """Return the output, then the gradients of input, weight and bias."""
    y = layer(batch.x)
    wanted = [batch.x, layer.weight, layer.bias]
    return y, *torch.autograd.grad(y, wanted, batch.dy)


def peak_memory(layer: nn.Module, batch: Batch) -> int:
    """Return the most bytes alive at once in a forward and backward.

    Input and gradient of the output count, since they are there all along.
    On the CPU the profiler logs every allocation and release, those inside
    native operators too, and the running total is taken.
    """
    forward_backward(layer, batch)
    given = sum(tensor.nbytes for tensor in batch)
    if batch.x.is_cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_backward(layer, batch)
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


def copy_bandwidth() -> float:
    """Return bytes a second, read and written, of a large copy on a GPU."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device='cuda')
    target = torch.empty_like(source)
    copy = Timer('target.copy_(source)', globals=locals())
    return 2 * COPY_BYTES / copy.timeit(20).median


def host_syncs(layer: nn.Module, batch: Batch) -> int:
    """Return how often a forward and backward make the host wait."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        torch.cuda.set_sync_debug_mode('warn')
        try:
            forward_backward(layer, batch)
        finally:
            torch.cuda.set_sync_debug_mode('default')
    return sum('synchronizing CUDA' in str(w.message) for w in caught)


def graph_replay(layer: nn.Module, batch: Batch) -> str:
    """Return ms of a replay under a CUDA graph, or why there is none.

    The replay has to give what the layer gives on another input.
    """
    step = partial(forward_backward, layer, batch)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # NCCL's own thread may query events meanwhile.
        with torch.cuda.graph(graph, capture_error_mode='thread_local'):
            captured = step()
        with torch.no_grad():
            batch.x.copy_(batch.x.flip(0) * 2 + 1)
        graph.replay()
        torch.cuda.synchronize()
        # Wide: a replay that went wrong is off by as much as the values.
        torch.testing.assert_close(captured, step(), rtol=0.01, atol=0.01)
    except (RuntimeError, AssertionError) as error:
        return f'none ({str(error).strip().splitlines()[0]})'
    replay = Timer('graph.replay()', globals=dict(graph=graph))
    return f'{replay.timeit(20).median * 1e3:.3f}'


def largest_error(layer: nn.Module, batch: Batch) -> dict[str, Any]:
    """Return the worst quantity of a step of Triton's kernels by its bound.

    Nothing where plain operations serve the layer.
    """
    implementation = kernels.choose(batch.x, layer.weight)
    if implementation is kernels.plain:
        return {}
    n, c, height, width = shape = tuple(batch.x.shape)
    if batch.x.is_contiguous():
        shape = (n, c, height * width)
    found = kernels.check.errors(
        implementation,
        batch.x.device,
        batch.x.dtype,
        layer.weight.dtype,
        kernels.check.Case(shape, few_programs=False),
    )
    # A NaN is above any bound.
    worst = max(found, key=lambda k: (found[k] != found[k], found[k]))
    verdict = '' if found[worst] <= 1 else ' WRONG'
    return {'largest error': f'{found[worst]:.2g} ({worst}){verdict}'}
