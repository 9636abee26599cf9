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
``sync_or_local_runs.py``. Runs of one seed begin with the same weights and see
the same images in every update.

Runs on the CPU. A finished run leaves ``result.json`` in its folder, beside
the monitor's ``bn_stats.jsonl``, and is not made again: the benchmark may be
interrupted and continued.

Example::

    BCCD_ROOT=/data/bccd python tools/benchmark/bench_sync_or_local.py
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cv2
import torch
from bench_ranks import positive
from mmdet.utils import register_all_modules
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
)
from sync_or_local_report import print_table, save, summarise
from sync_or_local_runs import (
    ARMS,
    BCCD_IMAGES,
    CONFIG_OF,
    EPOCHS,
    SIZE,
    Run,
)

from mmdet_megdet.demo_data import generate_shapes


def prepare_data(args: argparse.Namespace) -> None:
    """Generates the images and tells the configs where data sets lie.

    Raises:
        ValueError: If BCCD is asked for and isn't there.
    """
    if 'bccd' in args.data:
        root = Path(os.environ.get('BCCD_ROOT', 'data/bccd'))
        needed = root / 'annotations' / 'instances_train.json'
        if not needed.exists():
            raise ValueError(
                f'there is no {needed}: say where BCCD in COCO format lies '
                'by BCCD_ROOT=FOLDER, or leave it out by --data shapes.'
            )
    if 'shapes' in args.data:
        train, val = args.images
        root = args.out / f'light_{train}_{val}'
        # The ranks are forked, and threads are not taken along.
        cv2.setNumThreads(0)
        generate_shapes(root, train, val, SIZE, vary_light=True)
        os.environ['SHAPES_ROOT'] = str(root)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--data', nargs='+', choices=CONFIG_OF, default=list(CONFIG_OF))
    add('--arms', nargs='+', choices=ARMS, default=list(ARMS))
    add('--seeds', nargs='+', type=int, default=[0, 1, 2])
    add('--ranks', type=positive, default=8, help='and images an update')
    lengths = ', '.join(f'{n} of {data}' for data, n in EPOCHS.items())
    add('--epochs', type=positive, help=f'instead of {lengths}')
    add(
        '--images',
        nargs=2,
        type=positive,
        default=(320, 160),
        metavar=('TRAIN', 'VAL'),
        help='number of generated images',
    )
    add('--out', type=Path, default=Path('work_dirs/sync_or_local'))
    args = parser.parse_args(argv)
    images = dict(shapes=args.images[0], bccd=BCCD_IMAGES)
    for data in args.data:
        if images[data] % args.ranks:
            parser.error(
                f'{images[data]} training images of {data} are no whole '
                f'number of updates of {args.ranks} images (--ranks): the '
                'arms would not see the same images'
            )
    if not all(0 <= seed < 2**32 for seed in args.seeds):
        parser.error(f'--seeds {args.seeds}: each from 0 to {2**32 - 1}')
    if torch.cuda.is_available():
        parser.error(
            'the ranks train on the CPU, but MMEngine would choose the GPU '
            'of this machine: set CUDA_VISIBLE_DEVICES=-1'
        )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the runs that are missing and prints the table of all.

    Returns:
        int: Exit status: 0, or 1 where the runs can't be made.
    """
    args = parse_args(argv)
    try:
        prepare_data(args)
        # Seed by seed: whatever is interrupted has about as many runs of all.
        runs = [
            Run(data, arm, seed, args)
            for seed, data, arm in product(args.seeds, args.data, args.arms)
        ]
        for run in runs:
            run.finished()
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    progress = Progress(
        *('{task.description}', BarColumn(), MofNCompleteColumn()),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,  # that is a thread, and the ranks are forked
    )
    # Before the ranks are forked, so that they need not import it.
    register_all_modules(init_default_scope=False)
    results = []
    with progress:
        shown = progress.add_task('', total=len(runs))
        for run in runs:
            progress.update(shown, description=run.name, refresh=True)
            result = run.finished()
            if result is None:
                result = run.make()
                progress.print(
                    f'{run.name}: {result["seconds"]} s, bbox mAP '
                    f'{result["metrics"]["bbox_mAP"]:.3f}'
                )
            results.append(result)
            progress.advance(shown)
    rows = summarise(results)
    print_table(rows)
    save(rows, results, args.out)
    return 0


if __name__ == '__main__':
    sys.exit(main())
