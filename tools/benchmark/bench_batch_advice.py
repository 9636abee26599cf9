# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whether the advice for batch and learning rate holds: AP after training.

docs/which_batch.md says what is compared, and what came out. All runs see as
many images, with warm-up and drop at the same epochs. At 8 images three
learning rates are tried, the best of which the others start from. A finished
run is a line in ``runs.jsonl`` of the folder and is not made again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import narrow_detector as narrow
from mmengine.config import Config

from mmdet_megdet.arguments import positive
from mmdet_megdet.noise import (
    NoiseScale,
    linear_lr,
    noise_limited_lr,
    noise_scale,
    read_records,
    square_root_lr,
)

BASE = 8
BATCHES = (32, 128)
RATES = (0.02, 0.04, 0.08)
# The first at 32 images measures what the advice starts from.
RULES = ('square root', 'linear', 'advice', 'advice + AGVM')


def config(
    args: argparse.Namespace, seed: int, batch: int, rule: str, lr: float
) -> Config:
    """Return the config of a run."""
    settings = {
        'randomness.seed': seed,
        'train_dataloader.batch_size': BASE,
        'default_hooks.total_batch.total_batch_size': batch,
        'default_hooks.sync_bn_group.bn_size': BASE,
        'default_hooks.bn_stats': None,
        'optim_wrapper.optimizer': dict(
            _delete_=True, type='SGD', lr=lr, momentum=0.9, weight_decay=1e-4
        ),
        # Half an epoch, whatever the batch.
        'param_scheduler.0.end': max(1, args.images[0] // batch // 2),
    }
    if batch > BASE:
        settings['default_hooks.grad_noise'] = dict(
            type='GradientNoiseHook', interval=1
        )
    if rule.endswith('AGVM'):
        settings['default_hooks.module_variance'] = dict(
            type='ModuleVarianceHook'
        )
    name = f'{batch}_{rule.replace(" ", "_")}_{lr:.4g}_{seed}'
    return narrow.config('shapes', args.out / name, args.epochs, settings)


def train(cfg: Config) -> dict[str, Any]:
    """Make a run; return its AP, and the noise scale that it measured.

    The latter is that of the epochs between warm-up and drop.
    """
    result = narrow.train(cfg)
    if 'grad_noise' in cfg.default_hooks:
        last = narrow.drop_of(cfg.train_cfg.max_epochs)
        records = read_records(Path(cfg.work_dir))
        totals = [r.parts['total'] for r in records if 1 < r.epoch <= last]
        moments = ([total[key] for total in totals] for key in ('g2', 's'))
        result['noise'] = noise_scale(*moments)
    return result


def runs_of(seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the results of a seed's runs; make those that are missing."""

    def run(batch: int, rule: str, lr: float) -> dict[str, Any]:
        facts = dict(seed=seed, batch=batch, rule=rule, lr=lr)
        facts |= dict(epochs=args.epochs, images=[*args.images])
        cfg = config(args, seed, batch, rule, lr)
        return narrow.result_of(args.out, facts, partial(train, cfg))

    results = [run(BASE, 'grid', lr) for lr in RATES]
    learned = [r for r in results if not math.isnan(r['bbox_mAP'])]
    base = max(learned, key=lambda run: run['bbox_mAP'])['lr']
    noise = None
    for batch in BATCHES:
        for rule in RULES:
            results.append(run(batch, rule, rate(rule, base, batch, noise)))
            if noise is None:
                noise = NoiseScale(*results[-1]['noise']).value
    return results


def rate(rule: str, base: float, batch: int, noise: float | None) -> float:
    """Return the learning rate of a batch by a rule."""
    if rule == 'linear':
        return linear_lr(base, BASE, batch)
    if rule == 'square root':
        return square_root_lr(base, BASE, batch)
    return noise_limited_lr(base, BASE, batch, noise)


def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and print the table after each seed."""
    parser = narrow.parser_for(__doc__, (1024, 160), 'work_dirs/batch_advice')
    parser.add_argument('--epochs', type=positive, default=8, help='of a run')
    args = parser.parse_args(argv)
    narrow.prepare(args)
    results = []
    for seed in args.seeds:
        results += runs_of(seed, args)
        print(
            f'\n{narrow.table(results, ("batch", "rule", "lr"))}', flush=True
        )


if __name__ == '__main__':
    main()
