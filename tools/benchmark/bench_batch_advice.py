# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whether the advice for batch and learning rate holds: AP after training.

The narrow Faster R-CNN of ``narrow_detector.py`` on generated images,
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
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import narrow_detector as narrow
from measuring import markdown, parser_of, positive
from mmdet.utils import register_all_modules
from mmengine.config import Config

from mmdet_megdet.cli import build_runner
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
# The first at 32 images measures what the advice starts from.
RULES = ('square root', 'linear', 'advice', 'advice + AGVM')
PARTS = ('total', 'backbone', 'neck', 'rpn_head', 'roi_head.bbox_head')


def config(
    args: argparse.Namespace, seed: int, batch: int, rule: str, lr: float
) -> Config:
    """Return the config of a run."""
    cfg = Config.fromfile(narrow.CONFIGS / 'shapes_r18_fpn.py')
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
    cfg.merge_from_dict(narrow.COMMON | narrow.SHAPES | settings)
    return cfg


def drop_of(epochs: int) -> int:
    """Return the epoch at which the learning rate is divided by 10."""
    return max(1, round(0.75 * epochs))


def train(cfg: Config) -> dict[str, Any]:
    """Make a run; one that diverges has an AP of None."""
    began = time.monotonic()
    runner = build_runner(cfg)
    result: dict[str, Any] = dict.fromkeys(narrow.METRICS)
    try:
        runner.train()
    except NonFiniteLossError as error:
        result['diverged'] = str(error)
    else:
        result |= narrow.average_precisions(runner)
    for hook in runner.hooks:
        if isinstance(hook, ModuleVarianceHook):
            result['factors'] = hook.factors
    return result | dict(seconds=round(time.monotonic() - began))


def measured(folder: Path, epochs: int) -> dict[str, NoiseScale]:
    """Return the noise scales between warm-up and drop, by part."""
    found = [
        record
        for record in read_records(folder)
        if 1 < record.epoch <= drop_of(epochs)
    ]
    return {
        part: noise_scale(
            *([r.parts[part][key] for r in found] for key in ('g2', 's'))
        )
        for part in PARTS
    }


class Runs(narrow.Results):
    """The runs that there are, and those that are to be made.

    Args:
        args (argparse.Namespace): The command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args.out)
        self.args = args

    def run(
        self, seed: int, batch: int, rule: str, lr: float
    ) -> dict[str, Any]:
        """Return a run's result; make the run if it is not there."""
        facts = dict(seed=seed, batch=batch, rule=rule, lr=lr)
        length = dict(epochs=self.args.epochs, images=[*self.args.images])

        def make() -> dict[str, Any]:
            cfg = config(self.args, seed, batch, rule, lr)
            found = train(cfg)
            if batch > BASE:
                folder = Path(cfg.work_dir)
                found['noise'] = measured(folder, self.args.epochs)
            return found

        before = len(self.done)
        result = self.get(facts | length, make)
        if len(self.done) > before:
            print(f'\n{table(self.done)}', flush=True)
        return result

    def seed(self, seed: int) -> None:
        """Make all runs of a seed."""
        at_base = [self.run(seed, BASE, 'grid', lr) for lr in RATES]
        base = max(at_base, key=lambda run: run['bbox_mAP'] or 0.0)['lr']
        noise = None
        for batch in BATCHES:
            for rule in RULES:
                lr = rate(rule, base, batch, noise)
                result = self.run(seed, batch, rule, lr)
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
    ways: dict[tuple, list[dict[str, Any]]] = {}
    for r in results:
        lr = r['lr'] if r['rule'] == 'grid' else None
        ways.setdefault((r['batch'], r['rule'], str(lr)), []).append(r)
    rows = []
    for (batch, rule, _), runs in sorted(ways.items()):
        rates = sorted({f'{r["lr"]:.3g}' for r in runs})
        noise = [r['noise']['total'] for r in runs if 'noise' in r]
        rows.append(
            {
                'batch': batch,
                'rule': rule,
                'lr': ' to '.join(dict.fromkeys([rates[0], rates[-1]])),
                'bbox mAP, %': _percent([r['bbox_mAP'] for r in runs]),
                'AP50, %': _percent([r['bbox_mAP_50'] for r in runs]),
                'noise scale': '; '.join(str(NoiseScale(*v)) for v in noise),
                'seeds': ', '.join(str(r['seed']) for r in runs),
            }
        )
    return markdown(rows)


def _percent(values: Sequence[float | None]) -> str:
    if None in values:
        return f'diverged in {values.count(None)} of {len(values)}'
    text = f'{100 * fmean(values):.1f}'
    if len(values) > 1:
        text += f' (sd {100 * stdev(values):.1f})'
    return text


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument('--epochs', type=positive, default=8, help='of a run')
    narrow.add_options(parser, (1024, 160), 'work_dirs/batch_advice')
    args = parser.parse_args(argv)
    narrow.check_no_gpu(parser)
    if args.images[0] % max(BATCHES):
        parser.error(
            f'{args.images[0]} training images are no whole number of '
            f'updates of {max(BATCHES)}: the runs would not see as many'
        )
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs that are missing and print the table of all."""
    args = parse_args(argv)
    narrow.prepare_images(args)
    register_all_modules(init_default_scope=False)
    runs = Runs(args)
    for seed in args.seeds:
        runs.seed(seed)
    print(table(runs.done))


if __name__ == '__main__':
    main()
