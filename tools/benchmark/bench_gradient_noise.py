# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What GradientNoiseHook adds to an update that it measures.

Trains Faster R-CNN R18-FPN of ``configs/megdet/bccd_r18_fpn.py`` in one
process by the stock Runner, 16 images an update in four micro-steps, and
measures every other update. So both kinds see the machine in the same state.
The time is the process's own (CPU) time, which other programs on the machine
do not lengthen.

Example::

    BCCD_ROOT=/data/bccd python tools/benchmark/bench_gradient_noise.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from statistics import median

import torch
from measuring import ROOT, parser_of, positive
from mmengine.config import Config

from mmdet_megdet.cli import build_runner

CONFIG = ROOT / 'configs' / 'megdet' / 'bccd_r18_fpn.py'
# The first updates of each kind warm caches and allocators up.
LEFT_OUT = 2


def config(folder: str, updates: int, images: int) -> Config:
    """Return the config: every second update is measured."""
    cfg = Config.fromfile(CONFIG)
    hooks = dict.fromkeys(('checkpoint', 'bn_stats', 'rank_watch'))
    hooks['total_batch'] = dict(total_batch_size=16)
    hooks['grad_noise'] = dict(type='GradientNoiseHook', interval=2)
    cfg.merge_from_dict(
        {
            'work_dir': folder,
            'train_dataloader.batch_size': images,
            'train_dataloader.num_workers': 0,
            'train_dataloader.persistent_workers': False,
            'train_cfg': dict(
                _delete_=True, type='UpdateTrainLoop', max_updates=updates
            ),
            **dict.fromkeys(('val_dataloader', 'val_cfg', 'val_evaluator')),
            'default_hooks': hooks,
        }
    )
    return cfg


def measure(updates: int, images: int) -> tuple[list[float], list[float]]:
    """Return seconds of updates that are not measured, and of those that are.

    Args:
        updates (int): Of both kinds together.
        images (int): Images of a micro-step.
    """
    with tempfile.TemporaryDirectory() as folder:
        runner = build_runner(config(folder, updates, images))
        loop = runner.train_loop
        seconds, run_iter = [], loop.run_iter

        def timed(*batch: object) -> None:
            began = time.process_time()
            run_iter(*batch)
            seconds.append(time.process_time() - began)

        loop.run_iter = timed
        runner.train()
    return seconds[2 * LEFT_OUT :: 2], seconds[2 * LEFT_OUT + 1 :: 2]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add('--updates', type=positive, default=60, help='of each kind')
    add('--images', type=positive, default=4, help='of a micro-step')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    plain, measured = measure(2 * (args.updates + LEFT_OUT), args.images)
    ratio = median(measured) / median(plain)
    print(
        f'An update of 16 images, {args.images} at once, median of '
        f'{len(plain)} each: {median(plain):.3f} s, measured '
        f'{median(measured):.3f} s: x {ratio:.4f}. Measuring every 20th: '
        f'x {1 + (ratio - 1) / 20:.5f} on average.'
    )


if __name__ == '__main__':
    main()
