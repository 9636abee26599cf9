# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What synchronised BatchNorm adds to a whole training step.

Trains Faster R-CNN R18-FPN of ``configs/megdet/bccd_r18_fpn.py`` three times
in one run: with plain BatchNorm, which every rank keeps to itself; with the
same, but ranks meet at each layer, by all-reduces of the size that a
synchronised layer needs and whose result nobody uses; and with
``MegDetSyncBN``. What the second costs is waiting for one another, which any
synchronised layer pays.

Every rank holds all models, with equal weights, and they take turns on the
same generated images, so that all see the machine in the same state. A
step's time is that of the rank that took longest.

Example::

    python tools/benchmark/bench_train_step.py --out work_dirs/bench_step
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from bn_layers import MeetingBN
from mmengine.registry import MODELS
from training_steps import (
    compare,
    make_batch,
    make_model,
    parse_args,
    time_in_turns,
)

MODELS.register_module(module=MeetingBN)
NORMS = dict(plain='BN', meeting='MeetingBN', synchronised='MegDetSyncBN')


def measure(
    device: torch.device,
    steps: int,
    images: int,
    size: tuple[int, int],
    show_progress: bool,
) -> dict[str, list[float]]:
    """Seconds of each step of each model; called on every rank."""
    batch = make_batch(images, size)
    kinds = {}
    for name, norm in NORMS.items():
        model, optim_wrapper = make_model(norm, device)
        kinds[name] = partial(model.train_step, batch, optim_wrapper)
    return time_in_turns(kinds, steps, device, show_progress)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    args = parse_args(argv, __doc__.split('\n\n')[0], steps=20)
    compare(measure, args, 'train_step.json')


if __name__ == '__main__':
    main()
