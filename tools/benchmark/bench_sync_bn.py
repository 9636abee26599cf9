# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Time, memory and communication of synchronised BatchNorm layers.

Measures, side by side in one run, plain ``nn.BatchNorm2d`` (the limit
without communication), ``MegDetSyncBN``, the usual textbook SyncBN made of
differentiable all-reduces, and on GPUs ``nn.SyncBatchNorm``. The layers take
turns; figures are medians, ratios are those of medians. With one rank it is
the synchronised path that is measured, in a group of one. Where Triton's
kernels serve, their largest error by its bound is told too.

Nothing else should run on the machine: the caption shows its load.

Example::

    python tools/benchmark/bench_sync_bn.py --out work_dirs/bench_sync_bn
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import bn_costs
import matplotlib
import measuring
import torch
import torch.distributed as dist
from bn_layers import make_layers

matplotlib.use('Agg')
import matplotlib.pyplot as plt

DTYPES = ('float32', 'float16', 'bfloat16')
LAYOUTS = ('contiguous', 'channels_last')


def measure(
    device: torch.device, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return all rows of one world size; called on every rank."""
    bandwidth = bn_costs.copy_bandwidth() if device.type == 'cuda' else None
    rows = []
    for shape, dtype, layout in product(args.shapes, args.dtype, args.layout):
        facts = {
            'ranks': dist.get_world_size(),
            'input': 'x'.join(map(str, shape)),
            'dtype': dtype,
            'layout': layout,
        }
        batch = bn_costs.make_batch(shape, dtype, layout, device)
        found = measure_layers(batch, args.repeats, bandwidth)
        rows += [facts | row for row in found]
    return rows


def measure_layers(
    batch: bn_costs.Batch, repeats: int, bandwidth: float | None
) -> list[dict[str, Any]]:
    """Return one row for each layer, all of one input.

    Args:
        batch (Batch): This rank's.
        repeats (int): Samples of each layer.
        bandwidth (float, optional): Of a GPU.
    """
    device = batch.x.device
    layers = make_layers(batch.x.shape[1], device)
    turns = partial(
        measuring.take_turns,
        rounds=repeats,
        device=device,
        calls=1 if bandwidth is None else bn_costs.CUDA_CALLS,
    )
    forward = turns({n: partial(v, batch.x) for n, v in layers.items()})
    step = bn_costs.forward_backward
    both = turns({n: partial(step, v, batch) for n, v in layers.items()})
    plain, textbook = both['plain'].median, both['textbook'].median
    peaks = {n: bn_costs.peak_memory(v, batch) for n, v in layers.items()}
    rows = []
    for name, layer in layers.items():
        sent = bn_costs.sent_bytes(layer, batch)
        row = {
            'layer': name,
            'forward ms': forward[name].median * 1e3,
            'both ms': both[name].median * 1e3,
            'x plain': both[name].median / plain,
            'x textbook': both[name].median / textbook,
            'peak MiB': peaks[name] / bn_costs.MIB,
            'peak x plain': peaks[name] / peaks['plain'],
            'bytes sent': f'{sent[0]} + {sent[1]}',
        }
        if bandwidth is not None:
            row |= bn_costs.on_gpu(layer, batch, row['both ms'], bandwidth)
        if name == 'ours':
            row |= bn_costs.largest_error(layer, batch)
        rows.append(row)
    if bandwidth is not None:
        # Last, since a capture that fails may leave the GPU in a bad state.
        for row in rows:
            replay = bn_costs.graph_replay(layers[row['layer']], batch)
            row['graph replay ms'] = replay
    return rows


def draw(rows: list[dict[str, Any]], caption: str, path: Path) -> None:
    """Draw each input's times by the plain layer's, a panel a world size."""
    panels = [list(p) for _, p in groupby(rows, lambda row: row['ranks'])]
    figure, axes = plt.subplots(
        1, len(panels), squeeze=False, sharey=True, layout='constrained'
    )
    figure.set_size_inches(7 * len(panels), 5)
    for axis, panel in zip(axes[0], panels, strict=True):
        names = dict.fromkeys(row['layer'] for row in panel)
        for number, name in enumerate(names):
            own = [row for row in panel if row['layer'] == name]
            places = [i + 0.8 * number / len(names) for i in range(len(own))]
            heights = [row['x plain'] for row in own]
            bars = axis.bar(places, heights, 0.8 / len(names), label=name)
            axis.bar_label(bars, [f'{row["both ms"]:.3g}' for row in own])
        texts = [f'{r["input"]}\n{r["dtype"]}, {r["layout"]}' for r in own]
        axis.set_xticks(range(len(own)), texts)
        axis.set_title(f'{panel[0]["ranks"]} rank(s)')
    axes[0][0].set_ylabel("time by plain BatchNorm's (on the bars: ms)")
    axes[0][0].legend()
    figure.suptitle(caption, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    gpus = torch.cuda.device_count()
    parser = measuring.parser_of(
        __doc__,
        shapes=bn_costs.R50_FPN_SHAPES,
        world_sizes=[1] if gpus == 1 else [1, 2],
        device='cuda' if gpus else 'cpu',
        dtype=['float32'],
        layout=['contiguous'],
    )
    several = partial(parser.add_argument, nargs='+')
    positive = measuring.positive
    shape = dict(type=bn_costs.shape_of, metavar='N,C,H,W')
    several('--shapes', **shape, help="one rank's inputs")
    several('--world-sizes', type=positive, help='on GPUs one rank each')
    several('--dtype', choices=DTYPES, help='of input and output')
    several('--layout', choices=LAYOUTS, help='of the input')
    add = parser.add_argument
    add('--device', choices=('cpu', 'cuda'), help='where')
    add('--threads', type=positive, default=1, help='per rank')
    add('--repeats', type=positive, default=20, help='samples of each layer')
    add('--out', type=Path, help='folder for sync_bn.json and sync_bn.png')
    args = parser.parse_args(argv)
    measuring.check_ranks(parser, max(args.world_sizes), args.device)
    return args


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark; return the table's rows."""
    args = parse_args(argv)
    # The profiler, which measures memory, speaks of itself otherwise.
    os.environ.setdefault('KINETO_LOG_LEVEL', '99')
    caption = measuring.caption(args, f'{args.repeats} samples')
    rows: list[dict[str, Any]] = []
    for world_size in args.world_sizes:
        rows += measuring.run_ranks(
            measure, world_size, args.device, args.threads, args
        )
    print(f'{measuring.markdown(rows)}\n\n{caption}')
    if args.out:
        measuring.save(args.out / 'sync_bn.json', caption, rows=rows)
        draw(rows, caption, args.out / 'sync_bn.png')
    return rows


if __name__ == '__main__':
    main()
