# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What synchronised BatchNorm adds to a whole training step.

Trains Faster R-CNN R18-FPN of ``configs/megdet/bccd_r18_fpn.py`` twice in
one run: with ``MegDetSyncBN`` and with plain BatchNorm, which every rank
keeps to itself. Every rank holds both models, with equal weights, and the
two take turns on the same generated pictures, so that both see the machine
in the same state. A step's time is that of the rank that took longest.

Example::

    python tools/benchmark/bench_train_step.py --out work_dirs/bench_step
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torch.distributed as dist
from bench_ranks import check_ranks, positive, run_ranks
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmdet_megdet.datasets.picture import make_picture
from mmdet_megdet.runtime import MegDetDistributedDataParallel

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs' / 'megdet' / 'bccd_r18_fpn.py'
NORMS = dict(plain='BN', synchronised='MegDetSyncBN')


def make_model(
    norm: str, device: torch.device
) -> tuple[MegDetDistributedDataParallel, OptimWrapper]:
    """A model of the config with one kind of norm layer, and its optimizer.

    Args:
        norm (str): Registered name of the norm layer.
        device (torch.device): Where it trains.
    """
    cfg = Config.fromfile(CONFIG)
    norm_cfg = dict(type=norm, requires_grad=True)
    cfg.model.backbone.norm_cfg = cfg.model.neck.norm_cfg = norm_cfg
    # As small as at the warm-up's beginning: the steps must stay alike.
    cfg.optim_wrapper.optimizer.lr *= 1e-3
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    model = model.to(device).train()
    ids = None if device.type == 'cpu' else [device.index]
    model = MegDetDistributedDataParallel(model, device_ids=ids)
    return model, build_optim_wrapper(model, cfg.optim_wrapper)


def make_batch(images: int, size: tuple[int, int]) -> dict:
    """This rank's pictures of shapes, as the config's pipeline packs them.

    Args:
        images (int): Number of pictures.
        size (tuple[int, int]): Width and height.
    """
    inputs, samples = [], []
    for index in range(images):
        number = dist.get_rank() * images + index
        picture, annotations = make_picture('train', number, size)
        boxes = np.array([a['bbox'] for a in annotations], dtype=np.float32)
        boxes = torch.from_numpy(boxes.reshape(-1, 4))
        boxes[:, 2:] += boxes[:, :2]
        # The model knows three classes, the generator five.
        labels = [a['category_id'] % 3 for a in annotations]
        sample = DetDataSample(
            gt_instances=InstanceData(
                bboxes=boxes, labels=torch.tensor(labels, dtype=torch.long)
            ),
            metainfo=dict(
                img_shape=size[::-1],
                ori_shape=size[::-1],
                scale_factor=(1.0, 1.0),
            ),
        )
        inputs.append(torch.from_numpy(picture).permute(2, 0, 1).contiguous())
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


def measure(
    device: torch.device,
    steps: int,
    images: int,
    size: tuple[int, int],
    show_progress: bool,
) -> dict[str, list[float]]:
    """Seconds of each step of each model; called on every rank."""
    init_default_scope('mmdet')
    # Initialisation names every single weight.
    MMLogger.get_current_instance().setLevel('WARNING')
    models = {name: make_model(norm, device) for name, norm in NORMS.items()}
    batch = make_batch(images, size)
    seconds = {name: [] for name in models}
    shown = track(
        range(-1, steps),
        description=f'{dist.get_world_size()} ranks, training steps',
        console=Console(stderr=True),
        disable=dist.get_rank() != 0 or not show_progress,
    )
    for step in shown:
        for name, (model, optim_wrapper) in models.items():
            dist.barrier()
            begin = time.perf_counter()
            model.train_step(batch, optim_wrapper)
            if device.type == 'cuda':
                torch.cuda.synchronize()
            if step >= 0:  # the step before is the warm-up
                seconds[name].append(time.perf_counter() - begin)
    for name, values in seconds.items():
        slowest = torch.tensor(values, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds[name] = slowest.tolist()
    return seconds


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--world-size', type=positive, default=2)
    parser.add_argument(
        '--device',
        choices=('cpu', 'cuda'),
        default='cuda' if gpus > 1 else 'cpu',
    )
    parser.add_argument('--threads', type=positive, default=1, help='per rank')
    parser.add_argument(
        '--steps', type=positive, default=20, help='of each model'
    )
    parser.add_argument('--images', type=positive, default=4, help='per rank')
    parser.add_argument(
        '--size',
        nargs=2,
        type=positive,
        default=(320, 240),
        metavar=('WIDTH', 'HEIGHT'),
    )
    parser.add_argument('--out', type=Path, help='folder for train_step.json')
    args = parser.parse_args(argv)
    try:
        check_ranks(args.world_size, args.device)
    except ValueError as error:
        parser.error(str(error))
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    args = parse_args(argv)
    load = os.getloadavg()[0]
    seconds = run_ranks(
        measure,
        args.world_size,
        args.device,
        args.threads,
        args.steps,
        args.images,
        tuple(args.size),
        sys.stderr.isatty(),
    )
    medians = {name: median(values) for name, values in seconds.items()}
    ratio = medians['synchronised'] / medians['plain']
    caption = (
        f'{args.world_size} ranks x {args.images} images of '
        f'{args.size[0]}x{args.size[1]} on {args.device}, {args.threads} '
        f'thread(s) a rank; torch {torch.__version__}; {args.steps} steps '
        f'each; load before the run {load:.1f}'
    )
    table = Table('BatchNorm', caption=caption)
    for heading in ('step ms (median)', 'x plain'):
        table.add_column(heading, justify='right')
    for name, value in medians.items():
        shown = value / medians['plain']
        table.add_row(name, f'{value * 1e3:.0f}', f'{shown:.3f}')
    Console().print(table)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        content = dict(
            run=caption, seconds=seconds, medians=medians, ratio=ratio
        )
        path = args.out / 'train_step.json'
        path.write_text(json.dumps(content, indent=1))
        print(f'Written to {path}')


if __name__ == '__main__':
    main()
