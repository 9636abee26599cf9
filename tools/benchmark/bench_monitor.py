# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What BNStatsMonitorHook adds to a training step.

Trains Faster R-CNN R18-FPN of ``configs/megdet/bccd_r18_fpn.py`` with
``MegDetSyncBN``. Steps of three kinds take turns: without the hook; with it,
in an iteration at which it does not look; and in one at which it does,
writing, gathering and judging included. A step's time is that of the rank
that took longest.

Example::

    python tools/benchmark/bench_monitor.py --out work_dirs/bench_monitor
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from measuring import take_turns
from mmengine.logging import MessageHub
from mmengine.visualization import Visualizer
from torch.utils.benchmark import Measurement
from training_steps import compare, make_batch, make_model, parse_args

from mmdet_megdet.hooks import BNStatsMonitorHook

INTERVAL = 100


def measure(
    device: torch.device, args: argparse.Namespace
) -> dict[str, Measurement]:
    """Time a step of each kind; called on every rank."""
    model, optim_wrapper = make_model('MegDetSyncBN', device, args.config)
    train = partial(model.train_step, make_batch(args), optim_wrapper)
    # A step between looks has no share in communication to complain of.
    hook = BNStatsMonitorHook(INTERVAL, max_collective_share=1.0)

    def watched(iterations_before: int) -> None:
        runner.iter = iterations_before
        hook.before_train_iter(runner)
        train()
        hook.after_train_iter(runner)

    with tempfile.TemporaryDirectory() as folder:
        # What the hook needs of a Runner.
        runner = SimpleNamespace(
            model=model,
            hooks=[],
            rank=dist.get_rank(),
            iter=0,
            epoch=0,
            work_dir=folder,
            train_dataloader=SimpleNamespace(batch_size=args.images),
            optim_wrapper=optim_wrapper,
            message_hub=MessageHub.get_instance('bench_monitor'),
            visualizer=Visualizer(
                vis_backends=[dict(type='LocalVisBackend')], save_dir=folder
            ),
        )
        hook.before_train(runner)
        kinds = {
            'without': train,
            'between looks': partial(watched, INTERVAL),
            'a look': partial(watched, INTERVAL - 1),
        }
        return take_turns(kinds, args.steps, device)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = parse_args(argv, __doc__, steps=30)
    ratios = compare(measure, args, 'monitor')
    between, look = ratios['between looks'], ratios['a look']
    mean = between + (look - between) / INTERVAL
    print(f'A look every {INTERVAL} steps: x {mean:.4f} on average.')


if __name__ == '__main__':
    main()
