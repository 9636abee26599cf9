# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What synchronised BatchNorm adds to a whole training step.

Trains a detector (``--config``, by default Faster R-CNN R18-FPN of
``configs/megdet/bccd_r18_fpn.py``) in three ways in one run: with plain
BatchNorm, which every rank keeps to itself; with the same, but ranks meet at
each layer, by all-reduces of the size that a synchronised layer needs and
whose result nobody uses; and with ``MegDetSyncBN``. What the second costs is
waiting for one another, which any synchronised layer pays. On GPUs
``nn.SyncBatchNorm`` is a fourth way.

Every rank holds all models, with equal weights, and they take turns on the
same images, so that all see the machine in the same state. A step's time is
that of the rank that took longest.

Example::

    python tools/benchmark/bench_train_step.py --out work_dirs/bench_step
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from bn_layers import MeetingBN, layer_types
from measuring import take_turns
from mmengine.registry import MODELS
from torch.utils.benchmark import Measurement
from training_steps import compare, make_batch, make_model, parse_args


def norms(device: torch.device) -> dict[str, str]:
    """Return the registered names of the norm layers, in a job of ranks."""
    types = layer_types(device)
    kinds = dict(meeting=MeetingBN, synchronised=types['ours'])
    if 'nn.SyncBatchNorm' in types:
        kinds['nn.SyncBatchNorm'] = types['nn.SyncBatchNorm']
    for kind in kinds.values():
        MODELS.register_module(module=kind, force=True)
    names = {name: kind.__name__ for name, kind in kinds.items()}
    return dict(plain='BN', **names)


def measure(
    device: torch.device, args: argparse.Namespace
) -> dict[str, Measurement]:
    """Time a step of each model; called on every rank."""
    MeetingBN.group = dist.new_group()
    batch = make_batch(args)
    kinds = {}
    for name, norm in norms(device).items():
        model, optim_wrapper = make_model(norm, device, args.config)
        kinds[name] = partial(model.train_step, batch, optim_wrapper)
    with torch.autocast(device.type, torch.float16, enabled=args.amp):
        return take_turns(kinds, args.steps, device)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    compare(measure, parse_args(argv, __doc__, steps=20), 'train_step')


if __name__ == '__main__':
    main()
