# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Time, memory and communication of synchronised BatchNorm layers.

Measures, side by side in one run, plain ``nn.BatchNorm2d`` (the limit
without communication), ``MegDetSyncBN``, the usual textbook SyncBN made of
differentiable all-reduces, and on GPUs ``nn.SyncBatchNorm``. The layers take
turns; figures are medians, ratios are those of medians. With one rank it is
the synchronised path that is measured, in a group of one.

Nothing else should run on the machine: the table's caption shows its load.

Example::

    python tools/benchmark/bench_sync_bn.py --out work_dirs/bench_sync_bn
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import bn_cuda
import torch
import torch.distributed as dist
from bench_ranks import check_ranks, positive, run_ranks
from bn_layers import make_layers
from bn_measure import (
    make_batch,
    peak_memory,
    sent_bytes,
    time_alternating,
)
from bn_report import print_table, save
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

# What a ResNet-50 gives to BatchNorm for two images of 800x1216.
R50_FPN_SHAPES = [
    (2, 64, 200, 304),
    (2, 256, 100, 152),
    (2, 1024, 25, 38),
    (2, 2048, 13, 19),
]
MIB = 1 << 20


class Settings(NamedTuple):
    """What every rank measures.

    Attributes:
        shapes (list[tuple]): (N, C, H, W) of one rank's input.
        dtype (str): Of input and output; parameters are float32.
        channels_last (bool): Layout of the input.
        repeats (int): Samples of each layer.
        show_progress (bool): Whether rank 0 shows a progress bar.
    """

    shapes: list[tuple[int, ...]]
    dtype: str
    channels_last: bool
    repeats: int
    show_progress: bool


def measure(device: torch.device, settings: Settings) -> list[dict]:
    """All rows of one world size; called on every rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    bandwidth = bn_cuda.copy_bandwidth() if device.type == 'cuda' else None
    rows = []
    with Progress(
        TextColumn('{task.description:<24}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=rank != 0 or not settings.show_progress,
    ) as progress:
        total = len(settings.shapes) * settings.repeats
        task = progress.add_task('', total=total)
        for shape in settings.shapes:
            name = 'x'.join(map(str, shape))
            progress.update(task, description=f'{world_size} rank(s), {name}')
            for row in measure_shape(
                device,
                shape,
                settings,
                bandwidth,
                partial(progress.advance, task),
            ):
                rows.append(dict(world_size=world_size, shape=name, **row))
    return rows


def measure_shape(
    device: torch.device,
    shape: tuple[int, ...],
    settings: Settings,
    bandwidth: float | None,
    advance: Callable[[], None],
) -> list[dict]:
    """One row for each layer, all of one shape."""
    layers = make_layers(shape[1], device)
    batch = make_batch(
        shape, getattr(torch, settings.dtype), settings.channels_last, device
    )
    seconds = time_alternating(layers, batch, settings.repeats, advance)
    rows = []
    for name, layer in layers.items():
        both = seconds[name].sum(1, keepdim=True)
        medians = torch.cat([seconds[name], both], 1).quantile(0.5, 0)
        sent_forward, sent_backward = sent_bytes(layer, batch)
        row = dict(layer=name)
        for part, value in zip(
            ('forward', 'backward', 'both'), medians.tolist(), strict=True
        ):
            row[f'{part}_ms'] = value * 1e3
        row |= dict(
            peak_mib=peak_memory(layer, batch) / MIB,
            sent_forward_bytes=sent_forward,
            sent_backward_bytes=sent_backward,
        )
        if bandwidth is not None:
            row |= dict(
                bandwidth_share=bn_cuda.bandwidth_share(
                    batch, row['both_ms'] / 1e3, bandwidth
                ),
                host_syncs=bn_cuda.host_syncs(layer, batch),
            )
        rows.append(row)
    if bandwidth is not None:
        # Last, since a capture that fails may leave the GPU in a bad state.
        for row, layer in zip(rows, layers.values(), strict=True):
            replay = bn_cuda.graph_replay(layer, batch)
            done = isinstance(replay, float)
            row['graph_replay_ms'] = replay * 1e3 if done else None
            row['graph_failure'] = None if done else replay
    return rows_with_ratios(rows)


def rows_with_ratios(rows: list[dict]) -> list[dict]:
    """Add each row's ratios to the plain layer and to the textbook's."""
    named = {row['layer']: row for row in rows}
    for row in rows:
        for part in ('forward', 'backward', 'both'):
            key = f'{part}_ms'
            row[f'{part}_to_plain'] = row[key] / named['plain'][key]
        row['both_to_textbook'] = row['both_ms'] / named['textbook']['both_ms']
        row['peak_to_plain'] = row['peak_mib'] / named['plain']['peak_mib']
    return rows


def shape_of(text: str) -> tuple[int, ...]:
    """An argparse type: '2,64,200,304' as a tuple."""
    try:
        shape = tuple(int(size) for size in text.split(','))
    except ValueError:
        shape = ()
    if len(shape) != 4 or min(shape) < 1:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not N,C,H,W, such as 2,64,200,304'
        )
    if shape[0] * shape[2] * shape[3] == 1:
        raise argparse.ArgumentTypeError(
            f'{text!r} has one value per channel; BatchNorm needs two'
        )
    return shape


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        '--shapes',
        nargs='+',
        type=shape_of,
        default=R50_FPN_SHAPES,
        metavar='N,C,H,W',
        help="one rank's inputs",
    )
    parser.add_argument(
        '--world-sizes',
        nargs='+',
        type=positive,
        default=[1] if gpus == 1 else [1, 2],
        help='numbers of ranks; on GPUs one each',
    )
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), default='cuda' if gpus else 'cpu'
    )
    parser.add_argument(
        '--dtype',
        choices=('float32', 'float16', 'bfloat16'),
        default='float32',
        help='of input and output',
    )
    parser.add_argument('--channels-last', action='store_true')
    parser.add_argument('--threads', type=positive, default=1, help='per rank')
    parser.add_argument(
        '--repeats', type=positive, default=20, help='samples of each layer'
    )
    parser.add_argument(
        '--out', type=Path, help='folder for a table (CSV, JSON) and an image'
    )
    args = parser.parse_args(argv)
    for world_size in args.world_sizes:
        try:
            check_ranks(world_size, args.device)
        except ValueError as error:
            parser.error(str(error))
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    args = parse_args(argv)
    settings = Settings(
        args.shapes,
        args.dtype,
        args.channels_last,
        args.repeats,
        sys.stderr.isatty(),
    )
    # The profiler, which measures memory, speaks of itself otherwise.
    os.environ.setdefault('KINETO_LOG_LEVEL', '99')
    load = os.getloadavg()[0]
    rows = []
    for world_size in args.world_sizes:
        rows += run_ranks(
            measure, world_size, args.device, args.threads, settings
        )
    machine = (
        torch.cuda.get_device_name()
        if args.device == 'cuda'
        else f'{os.cpu_count()} CPUs, {args.threads} thread(s) a rank'
    )
    layout = ', channels_last' if args.channels_last else ''
    caption = (
        f'{machine}; torch {torch.__version__}; {args.dtype}{layout}; '
        f'{args.repeats} samples; load before the run {load:.1f}'
    )
    print_table(rows, caption)
    if args.out:
        save(rows, caption, args.out)


if __name__ == '__main__':
    main()
