# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whether synchronised BatchNorm pays: AP after the same training.

Three ways to train Faster R-CNN R18-FPN on 8 images an update:

- synced: 8 ranks x 1 image, statistics over the 8 images;
- local: 8 ranks x 1 image, every rank's BatchNorm on its own, running
  statistics pooled over the ranks before validation (``bn_size=1``);
- single: one process with 8 images and plain BatchNorm's arithmetic.

Two data sets: generated images whose light varies from image to image,
and BCCD, photographs that are alike (``BCCD_ROOT`` tells where it lies). The
configs are those of ``configs/megdet``, with the overrides of
``narrow_detector.py``. Runs of one seed begin with the same weights and see
the same images in every update.

Runs on the CPU. A finished run is a line in ``runs.jsonl`` of the folder and
is not made again: the benchmark may be interrupted and continued.

Example::

    BCCD_ROOT=/data/bccd python tools/benchmark/bench_sync_or_local.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import narrow_detector as narrow
import torch
from measuring import markdown, parser_of, positive, run_ranks
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.dist import get_rank

from mmdet_megdet.cli import build_runner

BCCD_SIZE = (192, 144)
BCCD_IMAGES = 200
EPOCHS = {'shapes': 8, 'bccd': 5}
OVERRIDES = {
    'shapes': narrow.SHAPES,
    'bccd': {
        'train_dataloader.dataset.pipeline.2.scale': BCCD_SIZE,
        'val_dataloader.dataset.pipeline.1.scale': BCCD_SIZE,
        # Of 205, so that all ranks make whole updates only.
        'train_dataloader.dataset.indices': BCCD_IMAGES,
    },
}
# By arm: whether the images of an update are spread over ranks, and the
# number of images of which BatchNorm takes its statistics (None: all).
ARMS = {'synced': (True, None), 'local': (True, 1), 'single': (False, None)}


def config(
    args: argparse.Namespace, data: str, arm: str, seed: int
) -> tuple[int, Config]:
    """Return the number of ranks and the config of a run."""
    spread, bn_size = ARMS[arm]
    ranks = args.ranks if spread else 1
    epochs = args.epochs or EPOCHS[data]
    cfg = Config.fromfile(narrow.CONFIGS / f'{data}_r18_fpn.py')
    settings = {
        'launcher': 'pytorch',
        'work_dir': str(args.out / data / arm / f'seed{seed}'),
        'randomness.seed': seed,
        'train_dataloader.batch_size': args.ranks // ranks,
        'default_hooks.total_batch.total_batch_size': args.ranks,
        'default_hooks.sync_bn_group.bn_size': bn_size,
        'train_cfg.max_epochs': epochs,
        'train_cfg.val_interval': epochs,
        'param_scheduler.1.end': epochs,
        'param_scheduler.1.milestones': [max(1, round(0.75 * epochs))],
    }
    cfg.merge_from_dict(narrow.COMMON | OVERRIDES[data] | settings)
    return ranks, cfg


def make(ranks: int, cfg: Config) -> dict[str, Any]:
    """Train; return the metrics and the seconds."""
    Path(cfg.work_dir).mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    metrics = run_ranks(train, ranks, 'cpu', 1, cfg)
    return metrics | dict(seconds=round(time.monotonic() - start))


def train(device: torch.device, cfg: Config) -> dict[str, float]:
    """Train by the stock Runner; called on every rank."""
    del device  # the Runner's own choice is the same
    rank = get_rank()
    os.environ['LOCAL_RANK'] = str(rank)  # the Runner asks for it
    with Path(cfg.work_dir, f'rank{rank}.log').open('w') as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    runner = build_runner(cfg)
    runner.train()
    return narrow.average_precisions(runner)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a table: each arm's mean over the seeds, and each of them.

    Where 'synced' and 'local' have seeds in common, so has the difference.
    """
    rows = []
    for data in dict.fromkeys(r['data'] for r in results):
        arms: dict[str, dict[int, dict]] = {}
        for run in results:
            if run['data'] == data:
                arms.setdefault(run['arm'], {})[run['seed']] = run
        synced, local = arms.get('synced', {}), arms.get('local', {})
        gains = {
            seed: {m: synced[seed][m] - local[seed][m] for m in narrow.METRICS}
            for seed in synced
            if seed in local
        }
        if gains:
            arms['synced - local'] = gains
        for arm, runs in arms.items():
            show = ('{:+.3f}' if arm == 'synced - local' else '{:.3f}').format
            row = {'data': data, 'arm': arm}
            for metric in narrow.METRICS:
                values = [run[metric] for run in runs.values()]
                seeds = ', '.join(map(show, values))
                row[metric] = f'{show(fmean(values))} ({seeds})'
            rows.append(row)
    return markdown(rows)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, data=[*EPOCHS], arms=[*ARMS])
    add = parser.add_argument
    add('--data', nargs='+', choices=EPOCHS, help='data sets')
    add('--arms', nargs='+', choices=ARMS, help='ways to train')
    add('--ranks', type=positive, default=8, help='and images an update')
    lengths = ', '.join(f'{n} of {data}' for data, n in EPOCHS.items())
    add('--epochs', type=positive, help=f'instead of {lengths}')
    narrow.add_options(parser, (320, 160), 'work_dirs/sync_or_local')
    args = parser.parse_args(argv)
    narrow.check_no_gpu(parser)
    images = dict(shapes=args.images[0], bccd=BCCD_IMAGES)
    for data in args.data:
        if images[data] % args.ranks:
            parser.error(
                f'{images[data]} training images of {data} are no whole '
                f'number of updates of {args.ranks} images (--ranks): the '
                'arms would not see the same images'
            )
    root = Path(os.environ.get('BCCD_ROOT', 'data/bccd'))
    needed = root / 'annotations' / 'instances_train.json'
    if 'bccd' in args.data and not needed.exists():
        parser.error(
            f'there is no {needed}: say where BCCD in COCO format lies '
            'by BCCD_ROOT=FOLDER, or leave it out by --data shapes.'
        )
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and print the table after each."""
    args = parse_args(argv)
    if 'shapes' in args.data:
        narrow.prepare_images(args)
    # Before the ranks are forked, so that they need not import it.
    register_all_modules(init_default_scope=False)
    finished, results = narrow.Results(args.out), []
    # Seed by seed: whatever is interrupted has about as many runs of all.
    for seed, data, arm in product(args.seeds, args.data, args.arms):
        facts = dict(data=data, arm=arm, seed=seed, ranks=args.ranks)
        facts |= dict(
            epochs=args.epochs or EPOCHS[data],
            images=[*args.images] if data == 'shapes' else [BCCD_IMAGES],
        )
        run = partial(make, *config(args, data, arm, seed))
        results.append(finished.get(facts, run))
        print(f'\n{table(results)}', flush=True)


if __name__ == '__main__':
    main()
