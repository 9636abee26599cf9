# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whether the advice for batch and learning rate holds: AP after training.

The narrow Faster R-CNN of ``sync_or_local_runs.py`` on generated images,
trained by SGD in one process at 8, 32 and 128 images an update, which are 1,
4 and 16 micro-steps of 8 images. All runs see as many images, with warm-up
and drop at the same epochs, and BatchNorm over 8 images.

1. At 8 images three learning rates; the best of them is what the others
   start from.
2. At 32 images the linear and the square-root rule. The noise scale of the
   latter, over the epochs between warm-up and drop, is what is advised from.
3. At 32 and 128 images the rules, the advice, and the advice with
   ``ModuleVarianceHook``.

At 8 images an update is one BN group in one micro-step, which has no noise
scale. A finished run is a line in ``runs.jsonl`` of the folder and is not
made again: the benchmark may be interrupted and continued. What is there is
printed as a table in Markdown after each run.

Example::

    python tools/benchmark/bench_batch_advice.py --seeds 0
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cv2
import torch
from bench_ranks import positive
from mmdet.utils import register_all_modules
from mmengine.config import Config
from sync_or_local_runs import COMMON, CONFIGS, OVERRIDES, SIZE

from mmdet_megdet.cli import build_runner
from mmdet_megdet.demo_data import generate_shapes
from mmdet_megdet.errors import NonFiniteLossError
from mmdet_megdet.hooks import ModuleVarianceHook
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
RULES = ('linear', 'square root', 'advice', 'advice + AGVM')
PARTS = ('total', 'backbone', 'neck', 'rpn_head', 'roi_head.bbox_head')


def config(
    args: argparse.Namespace, seed: int, batch: int, rule: str, lr: float
) -> Config:
    """Return the config of a run."""
    cfg = Config.fromfile(CONFIGS / 'shapes_r18_fpn.py')
    epochs, per_epoch = args.epochs, args.images[0] // batch
    name = f'{batch}_{rule.replace(" ", "_")}_{lr:.4g}_{seed}'
    settings = {
        'work_dir': str(args.out / name),
        'experiment_name': name,
        'randomness.seed': seed,
        'train_dataloader.batch_size': BASE,
        'default_hooks.total_batch.total_batch_size': batch,
        'default_hooks.sync_bn_group.bn_size': BASE,
        'default_hooks.bn_stats': None,
        'optim_wrapper.optimizer': dict(
            _delete_=True, type='SGD', lr=lr, momentum=0.9, weight_decay=1e-4
        ),
        # Half an epoch, whatever the batch.
        'param_scheduler.0.end': max(1, per_epoch // 2),
        'param_scheduler.1.end': epochs,
        'param_scheduler.1.milestones': [drop_of(epochs)],
        'train_cfg.max_epochs': epochs,
        'train_cfg.val_interval': epochs,
    }
    if batch > BASE:
        settings['default_hooks.grad_noise'] = dict(
            type='GradientNoiseHook', interval=1
        )
    if rule.endswith('AGVM'):
        settings['default_hooks.module_variance'] = dict(
            type='ModuleVarianceHook'
        )
    cfg.merge_from_dict(COMMON | OVERRIDES['shapes'] | settings)
    return cfg


def drop_of(epochs: int) -> int:
    """Return the epoch at which the learning rate is divided by 10."""
    return max(1, round(0.75 * epochs))


def train(cfg: Config) -> dict[str, Any]:
    """Make a run; one that diverges has an AP of None."""
    began = time.monotonic()
    runner = build_runner(cfg)
    result: dict[str, Any] = dict(bbox_mAP=None, bbox_mAP_50=None)
    try:
        runner.train()
    except NonFiniteLossError as error:
        result['diverged'] = str(error)
    else:
        scalars = runner.message_hub.log_scalars
        for name in result:
            result[name] = float(scalars[f'val/coco/{name}'].current())
    for hook in runner.hooks:
        if isinstance(hook, ModuleVarianceHook):
            result['factors'] = hook.factors
    return result | dict(seconds=round(time.monotonic() - began))


def measured(folder: Path, epochs: int) -> dict[str, NoiseScale]:
    """Return the noise scales between warm-up and drop, by part."""
    found = [
        record
        for record in read_records(folder)
        if 1 < record['epoch'] <= drop_of(epochs)
    ]
    return {
        part: noise_scale(
            *([r['parts'][part][key] for r in found] for key in ('g2', 's'))
        )
        for part in PARTS
    }


class Runs:
    """The runs that there are, and those that are to be made.

    Args:
        args (argparse.Namespace): The command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.path = args.out / 'runs.jsonl'
        self.done: list[dict[str, Any]] = []
        if self.path.exists():
            lines = self.path.read_text().splitlines()
            self.done = [json.loads(line) for line in lines]

    def get(
        self, seed: int, batch: int, rule: str, lr: float
    ) -> dict[str, Any]:
        """Return a run's result; make the run if it is not there."""
        facts = dict(
            seed=seed,
            batch=batch,
            rule=rule,
            lr=lr,
            epochs=self.args.epochs,
            images=[*self.args.images],
        )
        for result in self.done:
            if all(
                math.isclose(result[k], v) if k == 'lr' else result[k] == v
                for k, v in facts.items()
            ):
                return result
        cfg = config(self.args, seed, batch, rule, lr)
        result = facts | train(cfg)
        if batch > BASE:
            result['noise'] = measured(Path(cfg.work_dir), self.args.epochs)
        with self.path.open('a') as file:
            file.write(json.dumps(result) + '\n')
        self.done.append(result)
        print(f'\n{table(self.done)}', flush=True)
        return result

    def seed(self, seed: int) -> None:
        """Make all runs of a seed."""
        at_base = [self.get(seed, BASE, 'grid', lr) for lr in RATES]
        base = max(at_base, key=lambda run: run['bbox_mAP'] or 0.0)['lr']
        noise = None
        for batch in BATCHES:
            for rule in ('square root', 'linear', *RULES[2:]):
                lr = rate(rule, base, batch, noise)
                result = self.get(seed, batch, rule, lr)
                if noise is None:
                    noise = NoiseScale(*result['noise']['total']).value


def rate(rule: str, base: float, batch: int, noise: float | None) -> float:
    """Return the learning rate of a batch by a rule."""
    if rule == 'linear':
        return linear_lr(base, BASE, batch)
    if rule == 'square root':
        return square_root_lr(base, BASE, batch)
    return noise_limited_lr(base, BASE, batch, noise)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a table in Markdown: a row for each way to train."""
    lines = [
        '| batch | rule | lr | bbox mAP, % | AP50, % | noise scale | seeds |',
        '|---|---|---|---|---|---|---|',
    ]
    ways = dict.fromkeys(
        (r['batch'], r['rule'], r['lr'] if r['rule'] == 'grid' else None)
        for r in results
    )
    for batch, rule, lr in sorted(
        ways, key=lambda way: (way[0], *map(str, way[1:]))
    ):
        runs = [
            r
            for r in results
            if (r['batch'], r['rule']) == (batch, rule)
            and lr in (None, r['lr'])
        ]
        rates = sorted({f'{r["lr"]:.3g}' for r in runs})
        noise = [r['noise']['total'] for r in runs if 'noise' in r]
        cells = [
            str(batch),
            rule,
            ' to '.join(dict.fromkeys([rates[0], rates[-1]])),
            _percent([r['bbox_mAP'] for r in runs]),
            _percent([r['bbox_mAP_50'] for r in runs]),
            '; '.join(str(NoiseScale(*values)) for values in noise),
            ', '.join(str(r['seed']) for r in runs),
        ]
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def _percent(values: Sequence[float | None]) -> str:
    if None in values:
        return f'diverged in {values.count(None)} of {len(values)}'
    text = f'{100 * fmean(values):.1f}'
    if len(values) > 1:
        text += f' (sd {100 * stdev(values):.1f})'
    return text


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--seeds', nargs='+', type=int, default=[0, 1, 2])
    add('--epochs', type=positive, default=8)
    add(
        '--images',
        nargs=2,
        type=positive,
        default=(1024, 160),
        metavar=('TRAIN', 'VAL'),
        help='number of generated images',
    )
    add('--out', type=Path, default=Path('work_dirs/batch_advice'))
    args = parser.parse_args(argv)
    if args.images[0] % max(BATCHES):
        parser.error(
            f'{args.images[0]} training images are no whole number of '
            f'updates of {max(BATCHES)}: the runs would not see as many'
        )
    if torch.cuda.is_available():
        parser.error(
            'this trains on the CPU, but MMEngine would choose the GPU of '
            'this machine: set CUDA_VISIBLE_DEVICES=-1'
        )
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Makes the runs that are missing and prints the table of all."""
    args = parse_args(argv)
    train_images, val_images = args.images
    root = args.out / f'light_{train_images}_{val_images}'
    cv2.setNumThreads(0)
    generate_shapes(root, train_images, val_images, SIZE, vary_light=True)
    os.environ['SHAPES_ROOT'] = str(root)
    register_all_modules(init_default_scope=False)
    runs = Runs(args)
    for seed in args.seeds:
        runs.seed(seed)
    print(table(runs.done))


if __name__ == '__main__':
    main()
