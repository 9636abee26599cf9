# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What BNStatsMonitorHook adds to a training step.

Trains Faster R-CNN R18-FPN of ``configs/megdet/bccd_r18_fpn.py`` with
``MegDetSyncBN``. Steps of three kinds take turns, in another order each
round, so that all see the machine in the same state: without the hook; with
it, in an iteration at which it does not look; and in one at which it does,
writing, gathering and judging included. A step's time is that of the rank
that took longest.

Example::

    python tools/benchmark/bench_monitor.py --out work_dirs/bench_monitor
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from bench_ranks import check_ranks, positive, run_ranks
from bench_train_step import make_batch, make_model
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import init_default_scope
from mmengine.visualization import Visualizer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from mmdet_megdet.hooks import BNStatsMonitorHook

INTERVAL = 100
# The number of iterations completed before a step of each kind; None for a
# step without the hook.
KINDS = {'without': None, 'between looks': INTERVAL, 'a look': INTERVAL - 1}


def make_runner(model: nn.Module, folder: str) -> SimpleNamespace:
    """What the hook needs of a Runner."""
    return SimpleNamespace(
        model=model,
        hooks=[],
        rank=dist.get_rank(),
        iter=0,
        epoch=0,
        work_dir=folder,
        train_dataloader=SimpleNamespace(batch_size=1),
        optim_wrapper=SimpleNamespace(_accumulative_counts=1),
        message_hub=MessageHub.get_instance('bench_monitor'),
        visualizer=Visualizer(
            vis_backends=[dict(type='LocalVisBackend')], save_dir=folder
        ),
    )


def measure(
    device: torch.device,
    steps: int,
    images: int,
    size: tuple[int, int],
    show_progress: bool,
) -> dict[str, list[float]]:
    """Seconds of each step of each kind; called on every rank."""
    init_default_scope('mmdet')
    MMLogger.get_current_instance().setLevel('WARNING')
    model, optim_wrapper = make_model('MegDetSyncBN', device)
    batch = make_batch(images, size)
    # A step between looks has no share in communication to complain of.
    hook = BNStatsMonitorHook(INTERVAL, max_collective_share=1.0)
    seconds = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        runner = make_runner(model, folder)
        hook.before_train(runner)
        for step in track(
            range(-1, steps),
            description=f'{dist.get_world_size()} ranks, rounds of steps',
            console=Console(stderr=True),
            disable=dist.get_rank() != 0 or not show_progress,
        ):
            kinds = list(KINDS)
            first = step % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                dist.barrier()
                begin = time.perf_counter()
                if KINDS[kind] is not None:
                    runner.iter = KINDS[kind]
                    hook.before_train_iter(runner)
                model.train_step(batch, optim_wrapper)
                if KINDS[kind] is not None:
                    hook.after_train_iter(runner)
                if device.type == 'cuda':
                    torch.cuda.synchronize()
                if step >= 0:  # the round before is the warm-up
                    seconds[kind].append(time.perf_counter() - begin)
    for kind, values in seconds.items():
        slowest = torch.tensor(values, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds[kind] = slowest.tolist()
    return seconds


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--world-size', type=positive, default=2)
    parser.add_argument(
        '--device',
        choices=('cpu', 'cuda'),
        default='cuda' if gpus > 1 else 'cpu',
    )
    parser.add_argument('--threads', type=positive, default=1, help='per rank')
    parser.add_argument(
        '--steps', type=positive, default=30, help='of each kind'
    )
    parser.add_argument('--images', type=positive, default=4, help='per rank')
    parser.add_argument(
        '--size',
        nargs=2,
        type=positive,
        default=(320, 240),
        metavar=('WIDTH', 'HEIGHT'),
    )
    parser.add_argument('--out', type=Path, help='folder for monitor.json')
    args = parser.parse_args(argv)
    try:
        check_ranks(args.world_size, args.device)
    except ValueError as error:
        parser.error(str(error))
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    args = parse_args(argv)
    load = os.getloadavg()[0]
    seconds = run_ranks(
        measure,
        args.world_size,
        args.device,
        args.threads,
        args.steps,
        args.images,
        tuple(args.size),
        sys.stderr.isatty(),
    )
    medians = {kind: median(values) for kind, values in seconds.items()}
    ratios = {k: value / medians['without'] for k, value in medians.items()}
    between, look = ratios['between looks'], ratios['a look']
    mean = between + (look - between) / INTERVAL
    caption = (
        f'{args.world_size} ranks x {args.images} images of '
        f'{args.size[0]}x{args.size[1]} on {args.device}, {args.threads} '
        f'thread(s) a rank; torch {torch.__version__}; {args.steps} steps '
        f'each; load before the run {load:.1f}. A look every {INTERVAL} '
        f'steps: x {mean:.4f} on average.'
    )
    table = Table('step', caption=caption)
    for heading in ('ms (median)', 'x without'):
        table.add_column(heading, justify='right')
    for kind, value in medians.items():
        table.add_row(kind, f'{value * 1e3:.0f}', f'{ratios[kind]:.3f}')
    Console().print(table)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        content = dict(
            run=caption, seconds=seconds, medians=medians, ratios=ratios
        )
        path = args.out / 'monitor.json'
        path.write_text(json.dumps(content, indent=1))
        print(f'Written to {path}')


if __name__ == '__main__':
    main()
