# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Training steps of a small detector that take turns and are compared.

The detector is Faster R-CNN R18-FPN of ``configs/megdet/bccd_r18_fpn.py``, on
generated images. Steps of all kinds take turns, in another order each
round, so that all see the machine in the same state.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from bench_ranks import check_ranks, positive, run_ranks
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmdet_megdet.demo_data import make_image
from mmdet_megdet.runtime import MegDetDistributedDataParallel

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs' / 'megdet' / 'bccd_r18_fpn.py'


def make_model(
    norm: str, device: torch.device, cfg: Config | None = None
) -> tuple[MegDetDistributedDataParallel, OptimWrapper]:
    """A model of the config with one kind of norm layer, and its optimizer.

    Args:
        norm (str): Registered name of the norm layer.
        device (torch.device): Where it trains.
        cfg (Config, optional): Another config, with its norm layers as they
            are to be. Defaults to None: that of this module.
    """
    init_default_scope('mmdet')
    # Initialisation names every single weight.
    MMLogger.get_current_instance().setLevel('WARNING')
    if cfg is None:
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


def make_batch(
    images: int, size: tuple[int, int], with_masks: bool = False
) -> dict:
    """This rank's images of shapes, as the config's pipeline packs them.

    Args:
        images (int): Number of images.
        size (tuple[int, int]): Width and height.
        with_masks (bool): Whether objects have masks too: their boxes.
            Defaults to False.
    """
    inputs, samples = [], []
    for index in range(images):
        number = dist.get_rank() * images + index
        image, annotations = make_image('train', number, size)
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
        if with_masks:
            width, height = size
            masks = np.zeros((len(boxes), height, width), dtype=np.uint8)
            for mask, (x1, y1, x2, y2) in zip(
                masks, boxes.int().tolist(), strict=True
            ):
                mask[y1:y2, x1:x2] = 1
            sample.gt_instances.masks = BitmapMasks(masks, height, width)
        inputs.append(torch.from_numpy(image).permute(2, 0, 1).contiguous())
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


def time_in_turns(
    kinds: dict[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    show_progress: bool,
) -> dict[str, list[float]]:
    """Time every kind of step once a round; called on every rank.

    Args:
        kinds (dict[str, Callable]): Makes a step of each kind.
        rounds (int): Not counting one to warm up.
        device (torch.device): Where the steps run.
        show_progress (bool): Whether rank 0 shows a progress bar.

    Returns:
        dict[str, list[float]]: Seconds of each step, of the rank that took
        longest.
    """
    seconds = {name: [] for name in kinds}
    names = list(kinds)
    for number in track(
        range(-1, rounds),
        description=f'{dist.get_world_size()} ranks, rounds of steps',
        console=Console(stderr=True),
        disable=dist.get_rank() != 0 or not show_progress,
    ):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            begin = time.perf_counter()
            kinds[name]()
            if device.type == 'cuda':
                torch.cuda.synchronize()
            if number >= 0:
                seconds[name].append(time.perf_counter() - begin)
    for name, values in seconds.items():
        slowest = torch.tensor(values, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds[name] = slowest.tolist()
    return seconds


def parse_args(
    argv: Sequence[str] | None, description: str, steps: int
) -> argparse.Namespace:
    """Reads the command line.

    Args:
        argv (Sequence[str], optional): Defaults to None: that of the process.
        description (str): What the benchmark is for.
        steps (int): How many steps of each kind by default.
    """
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(
        description=description,
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
        '--steps', type=positive, default=steps, help='of each kind'
    )
    parser.add_argument('--images', type=positive, default=4, help='per rank')
    parser.add_argument(
        '--size',
        nargs=2,
        type=positive,
        default=(320, 240),
        metavar=('WIDTH', 'HEIGHT'),
    )
    parser.add_argument('--out', type=Path, help='folder for a JSON file')
    args = parser.parse_args(argv)
    try:
        check_ranks(args.world_size, args.device)
    except ValueError as error:
        parser.error(str(error))
    return args


def compare(
    measure: Callable[..., dict[str, list[float]]],
    args: argparse.Namespace,
    file_name: str,
    remark: Callable[[dict[str, float]], str] = lambda ratios: '',
) -> None:
    """Measure on all ranks, print a table of medians, and save.

    Args:
        measure (Callable): Called on every rank with device, steps, images,
            size and whether to show progress; gives the seconds of each
            kind of step. The first kind is what the others are compared to.
        args (argparse.Namespace): Of :func:`parse_args`.
        file_name (str): Of the JSON file.
        remark (Callable): Given the ratios, a sentence for the caption.
    """
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
    base, *_ = medians
    ratios = {name: value / medians[base] for name, value in medians.items()}
    caption = (
        f'{args.world_size} ranks x {args.images} images of '
        f'{args.size[0]}x{args.size[1]} on {args.device}, {args.threads} '
        f'thread(s) a rank; torch {torch.__version__}; {args.steps} steps '
        f'each; load before the run {load:.1f}{remark(ratios)}'
    )
    table = Table('step', caption=caption)
    for heading in ('ms (median)', f'x {base}'):
        table.add_column(heading, justify='right')
    for name, value in medians.items():
        table.add_row(name, f'{value * 1e3:.0f}', f'{ratios[name]:.3f}')
    Console().print(table)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        content = dict(
            run=caption, seconds=seconds, medians=medians, ratios=ratios
        )
        path = args.out / file_name
        path.write_text(json.dumps(content, indent=1))
        print(f'Written to {path}')
