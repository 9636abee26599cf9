# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a part of this package adds to an update of a whole training.

Trains a detector (``--config``) on random images by the stock Runner, with
updates of two or three kinds in turn, so that all kinds see the machine in
the same state. ``--compare`` says which:

- ``sync``: plain BatchNorm, which every rank keeps to itself, and
  ``MegDetSyncBN``; on GPUs ``nn.SyncBatchNorm`` too;
- ``monitor``: updates between the looks of ``BNStatsMonitorHook``, and at one;
- ``noise``: updates that ``GradientNoiseHook`` does not measure, and does.

The time is that of the rank that took longest. One rank on a CPU is timed by
its own (CPU) time, which other programs on the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import measuring
import torch
import torch.distributed as dist
from bn_layers import SwitchedBN, ways_on
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS
from torch.utils.benchmark import timer
from torch.utils.data import Dataset

from mmdet_megdet.arguments import positive
from mmdet_megdet.cli import build_runner

CONFIG = measuring.ROOT / 'configs' / 'megdet' / 'bccd_r18_fpn.py'
# Every other update is looked at.
HOOKS = dict(
    monitor=dict(
        type='BNStatsMonitorHook', interval=2, max_collective_share=1.0
    ),
    noise=dict(type='GradientNoiseHook', interval=2),
)
KINDS = dict(
    monitor=['between looks', 'a look'], noise=['not measured', 'measured']
)
# The first updates of each kind warm caches and allocators up.
LEFT_OUT = 2

MODELS.register_module(module=SwitchedBN, force=True)


@DATASETS.register_module(force=True)
class RandomImages(Dataset):
    """Random images with boxes and masks of three classes."""

    def __init__(self, length: int, size: Sequence[int]) -> None:
        shape = 3, size[1], size[0]
        self.content = demo_mm_inputs(
            length, shape, num_classes=3, with_mask=True
        )

    def __len__(self) -> int:
        return len(self.content['inputs'])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.content.items()}


def config(args: argparse.Namespace, updates: int, folder: str) -> Config:
    """Return the config of a training of so many updates."""
    cfg = Config.fromfile(args.config)
    total = args.images * args.ranks * args.micro_steps
    settings = {
        'launcher': 'pytorch',
        'work_dir': folder,
        'log_level': 'WARNING',
        'visualizer.name': args.compare,
        # Nothing to download.
        'model.backbone.init_cfg': None,
        # As small as at the warm-up's beginning: updates must stay alike.
        'optim_wrapper.optimizer.lr': cfg.optim_wrapper.optimizer.lr * 1e-3,
        'param_scheduler': [],
        'train_dataloader': dict(
            _delete_=True,
            batch_size=args.images,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=True),
            batch_sampler=dict(type='UpdateBatchSampler'),
            # An epoch is an update: each has all images.
            dataset=dict(type='RandomImages', length=total, size=args.size),
        ),
        'train_cfg': dict(
            _delete_=True, type='UpdateTrainLoop', max_updates=updates
        ),
        **dict.fromkeys(('val_dataloader', 'val_cfg', 'val_evaluator')),
        'default_hooks': dict(
            _delete_=True,
            checkpoint=None,
            logger=None,
            total_batch=dict(type='TotalBatchHook', total_batch_size=total),
            sync_bn_group=dict(type='SyncBNGroupHook', bn_size=None),
            compared=HOOKS.get(args.compare),
        ),
    }
    cfg.merge_from_dict(settings)
    if args.compare == 'sync':
        norm_cfg = dict(type='SwitchedBN', requires_grad=True)
        cfg.model.backbone.norm_cfg = cfg.model.neck.norm_cfg = norm_cfg
    if args.amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.loss_scale = 'dynamic'
    return cfg


def measure(
    device: torch.device, args: argparse.Namespace
) -> dict[str, list[float]]:
    """Return seconds of the updates of each kind; called on every rank."""
    ways = [way for way in ways_on(device) if way != 'textbook']
    kinds = KINDS.get(args.compare, ways)
    own = args.ranks == 1 and device.type == 'cpu'
    # torch's timer waits for a GPU.
    clock = time.process_time if own else timer
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        updates = len(kinds) * (args.updates + LEFT_OUT)
        runner = build_runner(config(args, updates, folder))
        loop = runner.train_loop
        run_iter = loop.run_iter

        def timed(*batch: Any) -> None:
            for layer in runner.model.modules():
                layer.way = kinds[runner.iter % len(kinds)]
            dist.barrier()
            began = clock()
            run_iter(*batch)
            seconds.append(clock() - began)

        loop.run_iter = timed
        runner.train()
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    by_kind = slowest.view(-1, len(kinds))[LEFT_OUT:].T.tolist()
    return dict(zip(kinds, by_kind, strict=True))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = measuring.parser_of(__doc__, size=[320, 240])
    add = parser.add_argument
    add('--compare', choices=['sync', *HOOKS], required=True, help='what')
    add('--config', default=str(CONFIG), help='whose detector is trained')
    add('--amp', action='store_true', help='in float16, on a GPU')
    add = partial(add, type=positive)
    add('--ranks', default=2, help='on GPUs one each')
    add('--threads', default=1, help='per rank')
    add('--images', default=4, help='at once on a rank')
    add('--micro-steps', default=2, help='of an update')
    add('--size', nargs=2, metavar=('W', 'H'), help='of images')
    add('--updates', default=30, help='of each kind')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of medians, and of each by that of the first kind."""
    args = parse_args(argv)
    found = measuring.run_ranks(measure, args.ranks, args.threads, args)
    medians = {kind: median(seconds) for kind, seconds in found.items()}
    base = next(iter(medians))
    rows = []
    for kind, seconds in medians.items():
        ratio = f'{seconds / medians[base]:.3f}'
        rows.append({'update': kind, 'ms': 1e3 * seconds, f'x {base}': ratio})
    width, height = args.size
    caption = measuring.caption(
        args.threads,
        f'{args.ranks} rank(s) x {args.images} images of {width}x{height} x '
        f'{args.micro_steps} micro-steps; median of {args.updates} updates',
    )
    print(f'{measuring.markdown(rows)}\n\n{caption}')


if __name__ == '__main__':
    main()
