# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Training steps of a small detector that take turns and are compared.

The detector is that of a config, on random images; Faster R-CNN R18-FPN of
``configs/megdet/bccd_r18_fpn.py`` if nothing else is said.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import measuring
import torch
import torch.distributed as dist
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch.utils.benchmark import Measurement

from mmdet_megdet.runtime import MegDetDistributedDataParallel

CONFIG = measuring.ROOT / 'configs' / 'megdet' / 'bccd_r18_fpn.py'


def make_model(
    norm: str, device: torch.device, config: str | Path
) -> tuple[MegDetDistributedDataParallel, OptimWrapper]:
    """Build a config's model with one kind of norm layer, and its optimizer.

    Args:
        norm (str): Registered name of the norm layer.
        device (torch.device): Where it trains.
        config (str | Path): Of the detector.
    """
    init_default_scope('mmdet')
    # Initialisation names every single weight.
    MMLogger.get_current_instance().setLevel('WARNING')
    cfg = Config.fromfile(config)
    norm_cfg = dict(type=norm, requires_grad=True)
    cfg.model.backbone.norm_cfg = cfg.model.neck.norm_cfg = norm_cfg
    # Nothing to download.
    cfg.model.backbone.init_cfg = None
    # As small as at the warm-up's beginning: the steps must stay alike.
    cfg.optim_wrapper.optimizer.lr *= 1e-3
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    model = model.to(device).train()
    ids = None if device.type == 'cpu' else [device.index]
    model = MegDetDistributedDataParallel(model, device_ids=ids)
    return model, build_optim_wrapper(model, cfg.optim_wrapper)


def make_batch(args: argparse.Namespace) -> dict[str, list]:
    """Return this rank's random images, boxes and masks of three classes."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    width, height = args.size
    everybodys = demo_mm_inputs(
        batch_size=args.images * world_size,
        image_shapes=(3, height, width),
        num_classes=3,
        with_mask=True,
    )
    own = slice(args.images * rank, args.images * (rank + 1))
    return {name: values[own] for name, values in everybodys.items()}


def parse_args(
    argv: Sequence[str] | None, doc: str, steps: int
) -> argparse.Namespace:
    """Read the command line.

    Args:
        argv (Sequence[str], optional): Defaults to None: that of the process.
        doc (str): The benchmark's docstring.
        steps (int): How many steps of each kind by default.
    """
    gpus = torch.cuda.device_count()
    parser = measuring.parser_of(doc, size=(320, 240))
    add, positive = parser.add_argument, measuring.positive
    add('--config', default=str(CONFIG), help='whose detector is trained')
    add('--world-size', type=positive, default=2, help='number of ranks')
    device = 'cuda' if gpus > 1 else 'cpu'
    add('--device', choices=('cpu', 'cuda'), default=device, help='where')
    add('--amp', action='store_true', help='train in float16 (autocast)')
    add('--threads', type=positive, default=1, help='per rank')
    add('--steps', type=positive, default=steps, help='of each kind')
    add('--images', type=positive, default=4, help='per rank')
    add('--size', nargs=2, type=positive, metavar=('W', 'H'), help='of them')
    add('--out', type=Path, help='folder for a JSON file')
    args = parser.parse_args(argv)
    measuring.check_ranks(parser, args.world_size, args.device)
    return args


def compare(
    measure: Callable[..., dict[str, Measurement]],
    args: argparse.Namespace,
    name: str,
) -> dict[str, float]:
    """Measure on all ranks, print a table of medians, and save.

    Args:
        measure (Callable): Called on every rank with device and ``args``; the
            first kind of step is what the others are compared to.
        args (argparse.Namespace): Of :func:`parse_args`.
        name (str): Of the JSON file.

    Returns:
        dict[str, float]: Each kind's median by that of the first.
    """
    width, height = args.size
    caption = measuring.caption(
        args,
        f'{args.world_size} rank(s) x {args.images} images of '
        f'{width}x{height}; {args.steps} steps of each kind',
    )
    measured = measuring.run_ranks(
        measure, args.world_size, args.device, args.threads, args
    )
    base = next(iter(measured))
    ratios = {
        kind: value.median / measured[base].median
        for kind, value in measured.items()
    }
    rows = [
        {
            'step': kind,
            'ms (median)': measured[kind].median * 1e3,
            f'x {base}': f'{ratio:.3f}',
        }
        for kind, ratio in ratios.items()
    ]
    print(f'{measuring.markdown(rows)}\n\n{caption}')
    if args.out:
        seconds = {kind: value.times for kind, value in measured.items()}
        path = args.out / f'{name}.json'
        measuring.save(path, caption, seconds=seconds, ratios=ratios)
    return ratios
