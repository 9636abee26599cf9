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

import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from mmengine.logging import MessageHub
from mmengine.visualization import Visualizer
from torch import nn
from training_steps import (
    compare,
    make_batch,
    make_model,
    parse_args,
    time_in_turns,
)

from mmdet_megdet.hooks import BNStatsMonitorHook

INTERVAL = 100


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
    model, optim_wrapper = make_model('MegDetSyncBN', device)
    train = partial(model.train_step, make_batch(images, size), optim_wrapper)
    # A step between looks has no share in communication to complain of.
    hook = BNStatsMonitorHook(INTERVAL, max_collective_share=1.0)

    def watched(iterations_before: int) -> None:
        runner.iter = iterations_before
        hook.before_train_iter(runner)
        train()
        hook.after_train_iter(runner)

    with tempfile.TemporaryDirectory() as folder:
        runner = make_runner(model, folder)
        hook.before_train(runner)
        kinds = {
            'without': train,
            'between looks': partial(watched, INTERVAL),
            'a look': partial(watched, INTERVAL - 1),
        }
        return time_in_turns(kinds, steps, device, show_progress)


def on_average(ratios: dict[str, float]) -> str:
    """What a run pays, looks and the steps between them together."""
    between, look = ratios['between looks'], ratios['a look']
    mean = between + (look - between) / INTERVAL
    return f'. A look every {INTERVAL} steps: x {mean:.4f} on average.'


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    args = parse_args(argv, __doc__.split('\n\n')[0], steps=30)
    compare(measure, args, 'monitor.json', on_average)


if __name__ == '__main__':
    main()
