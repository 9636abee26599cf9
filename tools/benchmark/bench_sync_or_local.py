# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whether synchronised BatchNorm pays: AP after the same training.

docs/does_it_pay.md says what is compared, and what came out. A finished run
is a line in ``runs.jsonl`` of the folder and is not made again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import narrow_detector as narrow
import torch
from measuring import run_ranks
from mmengine.config import Config
from mmengine.dist import get_rank

from mmdet_megdet.arguments import positive

BCCD_SIZE = (192, 144)
BCCD_IMAGES = 200
EPOCHS = {'shapes': 8, 'bccd': 5}
OVERRIDES = {
    'shapes': {},
    'bccd': {
        'train_dataloader.dataset.pipeline.2.scale': BCCD_SIZE,
        'val_dataloader.dataset.pipeline.1.scale': BCCD_SIZE,
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
    settings = {
        'launcher': 'pytorch',
        'randomness.seed': seed,
        'train_dataloader.batch_size': args.ranks // ranks,
        'default_hooks.total_batch.total_batch_size': args.ranks,
        'default_hooks.sync_bn_group.bn_size': bn_size,
    }
    folder = args.out / data / arm / f'seed{seed}'
    epochs = args.epochs or EPOCHS[data]
    cfg = narrow.config(data, folder, epochs, OVERRIDES[data] | settings)
    return ranks, cfg


def train(device: torch.device, cfg: Config) -> dict[str, Any]:
    """Make a run; called on every rank, with a log of its own."""
    log = Path(cfg.work_dir, f'rank{get_rank()}.log')
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open('w') as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    return narrow.train(cfg)


def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and print the table after each."""
    out = 'work_dirs/sync_or_local'
    parser = narrow.parser_for(__doc__, (320, 160), out)
    add = parser.add_argument
    parser.set_defaults(data=[*EPOCHS], arms=[*ARMS])
    add('--data', nargs='+', choices=EPOCHS, help='data sets')
    add('--arms', nargs='+', choices=ARMS, help='ways to train')
    add('--ranks', type=positive, default=8, help='and images an update')
    add('--epochs', type=positive, help=f'instead of {EPOCHS}')
    args = parser.parse_args(argv)
    narrow.prepare(args)
    results = []
    # Seed by seed: whatever is interrupted has about as many runs of all.
    for seed, data, arm in product(args.seeds, args.data, args.arms):
        facts = dict(data=data, arm=arm, seed=seed, ranks=args.ranks)
        facts |= dict(
            epochs=args.epochs or EPOCHS[data],
            images=[*args.images] if data == 'shapes' else [BCCD_IMAGES],
        )
        ranks, cfg = config(args, data, arm, seed)
        run = partial(run_ranks, train, ranks, 1, cfg)
        results.append(narrow.result_of(args.out, facts, run))
        print(f'\n{narrow.table(results, ("data", "arm"))}', flush=True)


if __name__ == '__main__':
    main()
