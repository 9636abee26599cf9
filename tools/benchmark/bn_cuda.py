# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What can be asked of a BatchNorm layer on a GPU alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median

import torch
from bn_measure import Batch, forward_backward
from torch import nn

# Full-size tensors that a BatchNorm has to move if no cache helps it:
# forward reads the input for the statistics and again to normalise it, and
# writes the output; backward reads input and gradient twice, and writes one.
PASSES = 3 + 5
COPY_BYTES = 1 << 30


def elapsed(fn: Callable[[], object], repeats: int) -> float:
    """Median seconds of ``fn()`` on the GPU."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return median(times)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy on this GPU."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device='cuda')
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * COPY_BYTES / elapsed(lambda: target.copy_(source), 10)


def bandwidth_share(batch: Batch, seconds: float, bandwidth: float) -> float:
    """Achieved share of a copy's bandwidth; a cache can lift it over 1."""
    return PASSES * batch.x.nbytes / seconds / bandwidth


def host_syncs(layer: nn.Module, batch: Batch) -> int:
    """How often a forward and backward make the host wait for the GPU."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        torch.cuda.set_sync_debug_mode('warn')
        try:
            forward_backward(layer, batch)
        finally:
            torch.cuda.set_sync_debug_mode('default')
    return sum('synchronizing CUDA' in str(w.message) for w in caught)


def graph_replay(layer: nn.Module, batch: Batch) -> float | str:
    """Seconds of a replay under a CUDA graph, or why there is none.

    The replay has to give what the layer gives on another input.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward_backward(layer, batch)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # NCCL's own thread may query events meanwhile.
        with torch.cuda.graph(graph, capture_error_mode='thread_local'):
            captured = forward_backward(layer, batch)
        with torch.no_grad():
            batch.x.copy_(batch.x.flip(0) * 2 + 1)
        graph.replay()
        torch.cuda.synchronize()
        expected = forward_backward(layer, batch)
        # Wide: a replay that went wrong is off by as much as the values.
        torch.testing.assert_close(captured, expected, rtol=0.01, atol=0.01)
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return elapsed(graph.replay, 10)
