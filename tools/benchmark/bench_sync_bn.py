# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Time and memory of synchronised BatchNorm layers.

Measures, side by side in one run, the layers of ``bn_layers.py``. They take
turns; figures are medians, ratios are those of medians. Where Triton's kernels
serve, their largest error by its bound is told too, and one beyond it makes
the exit status 1. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import bn_costs
import measuring
import torch
import torch.distributed as dist
from bn_costs import Batch, forward_backward
from bn_layers import SwitchedBN, ways_on
from torch.utils.benchmark import timer

from mmdet_megdet.arguments import positive

DTYPES = ('float32', 'float16', 'bfloat16')
LAYOUTS = dict(
    contiguous=torch.contiguous_format, channels_last=torch.channels_last
)
# What a ResNet-50 gives to BatchNorm for two images of 800x1216.
R50_FPN_SHAPES = [
    (2, 64, 200, 304),
    (2, 256, 100, 152),
    (2, 1024, 25, 38),
    (2, 2048, 13, 19),
]
# Steps behind one another in a sample on a GPU.
CUDA_CALLS = 10


def shape(text: str) -> tuple[int, ...]:
    """Read a shape such as '2,64,200,304'."""
    n, c, height, width = map(int, text.split(','))
    return n, c, height, width


def take_turns(
    kinds: dict[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
) -> dict[str, float]:
    """Return median seconds of a step of each kind, of the slowest rank.

    Called on every rank. Every kind is timed once a round, of which the first
    is to warm up, and each has another order, so that all kinds see the
    machine in the same state. Ranks start a step together. On a GPU some steps
    are timed as one, so that the host runs ahead of it as in training.
    """
    calls = CUDA_CALLS if device.type == 'cuda' else 1
    steps = list(enumerate(kinds.values()))
    seconds = torch.zeros(rounds + 1, len(steps), dtype=torch.float64)
    for row in seconds:
        for kind, step in steps:
            dist.barrier()
            # torch's timer waits for a GPU.
            begin = timer()
            for _ in range(calls):
                step()
            row[kind] = timer() - begin
        steps.append(steps.pop(0))
    slowest = seconds[1:].to(device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    medians = slowest.quantile(0.5, dim=0) / calls
    return dict(zip(kinds, medians.tolist(), strict=True))


def make_batch(
    shape: tuple[int, ...], dtype: str, layout: str, device: torch.device
) -> Batch:
    """Return standard normal numbers that differ from rank to rank."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    x, dy = (
        torch.randn(shape, generator=generator)
        .to(device, getattr(torch, dtype))
        .contiguous(memory_format=LAYOUTS[layout])
        for _ in range(2)
    )
    return Batch(x.requires_grad_(), dy)


def measure(
    device: torch.device, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return all rows of one world size; called on every rank."""
    bandwidth = bn_costs.copy_bandwidth() if device.type == 'cuda' else None
    rows = []
    for size, dtype, layout in product(args.shapes, args.dtype, args.layout):
        facts = {
            'ranks': dist.get_world_size(),
            'input': 'x'.join(map(str, size)),
            'dtype': dtype,
            'layout': layout,
        }
        batch = make_batch(size, dtype, layout, device)
        found = measure_layers(batch, args.repeats, bandwidth)
        rows += [facts | row for row in found]
    return rows


def measure_layers(
    batch: Batch, repeats: int, bandwidth: float | None
) -> list[dict[str, Any]]:
    """Return one row for each layer; ``bandwidth`` is that of a GPU."""
    device = batch.x.device
    layers = {}
    for way in ways_on(device):
        layers[way] = SwitchedBN(batch.x.shape[1]).to(device)
        layers[way].way = way
    steps = {n: partial(forward_backward, v, batch) for n, v in layers.items()}
    times = take_turns(steps, repeats, device)
    peaks = {n: bn_costs.peak_memory(v, batch) for n, v in layers.items()}
    rows = []
    for name, layer in layers.items():
        seconds = times[name]
        row = {
            'layer': name,
            'ms': seconds * 1e3,
            'x plain': seconds / times['plain'],
            'x textbook': seconds / times['textbook'],
            'peak MiB': peaks[name] / (1 << 20),
            'peak x plain': peaks[name] / peaks['plain'],
        }
        if bandwidth is not None:
            # A cache can lift a layer over it.
            limit = bn_costs.PASSES * batch.x.nbytes / bandwidth
            row['x traffic'] = seconds / limit
            row['host syncs'] = bn_costs.host_syncs(layer, batch)
        if name == 'ours':
            row |= bn_costs.largest_error(layer, batch)
        rows.append(row)
    if bandwidth is not None:
        # Last, since a capture that fails may leave the GPU in a bad state.
        for row in rows:
            replay = bn_costs.graph_replay(layers[row['layer']], batch)
            row['graph replay ms'] = replay
    return rows


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = measuring.parser_of(
        __doc__,
        shapes=R50_FPN_SHAPES,
        world_sizes=[1] if torch.cuda.device_count() == 1 else [1, 2],
        dtype=['float32'],
        layout=['contiguous'],
    )
    several = partial(parser.add_argument, nargs='+')
    several('--shapes', type=shape, metavar='N,C,H,W', help="a rank's inputs")
    several('--world-sizes', type=positive, help='on GPUs one rank each')
    several('--dtype', choices=DTYPES, help='of input and output')
    several('--layout', choices=LAYOUTS, help='of the input')
    add = partial(parser.add_argument, type=positive)
    add('--threads', default=1, help='per rank')
    add('--repeats', default=20, help='samples of each layer')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    args = parse_args(argv)
    # The profiler, which measures memory, speaks of itself otherwise.
    os.environ.setdefault('KINETO_LOG_LEVEL', '99')
    caption = measuring.caption(args.threads, f'{args.repeats} samples')
    rows: list[dict[str, Any]] = []
    for world_size in args.world_sizes:
        rows += measuring.run_ranks(measure, world_size, args.threads, args)
    print(f'{measuring.markdown(rows)}\n\n{caption}')
    wrong = sum('WRONG' in row.get('largest error', '') for row in rows)
    if wrong:
        print(f'error: {wrong} rows are beyond their bounds', file=sys.stderr)
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
