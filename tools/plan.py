# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Print what a recipe comes to on given hardware, from numbers alone.

Several set-ups side by side: ``tools/plan.py 8x4 4x8 2x8x8``. Exit status 1
if one of them does not run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def load_part(name: str) -> ModuleType:
    """Import a part of the package without its ``__init__``.

    That would import torch, which takes seconds and may be what is broken.
    """
    bare = ModuleType('bare_mmdet_megdet')
    package = importlib.util.find_spec('mmdet_megdet')
    bare.__path__ = package.submodule_search_locations
    sys.modules.setdefault(bare.__name__, bare)
    return importlib.import_module(f'{bare.__name__}.{name}')


recipe = load_part('recipe')
_arguments = load_part('arguments')
positive, bn_size = _arguments.positive, _arguments.bn_size


class SetUp(NamedTuple):
    """Nodes, GPUs a node, and images per GPU."""

    nodes: int
    gpus: int
    images: int

    def __str__(self) -> str:
        numbers = self if self.nodes > 1 else self[1:]
        return 'x'.join(map(str, numbers))


def set_up(text: str) -> SetUp:
    """Read ``GPUSxIMAGES`` or ``NODESxGPUSxIMAGES``."""
    parts = text.lower().split('x')
    if len(parts) not in (2, 3):
        raise argparse.ArgumentTypeError(
            f'{text!r} is neither GPUSxIMAGES, such as 8x4, nor '
            'NODESxGPUSxIMAGES, such as 2x8x4'
        )
    numbers = [positive(part) for part in parts]
    return SetUp(*([1, *numbers][-3:]))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plans; return the exit status."""
    parser = argparse.ArgumentParser(
        description='Print what a recipe comes to on given hardware.',
        allow_abbrev=False,
    )
    parser.add_argument(
        'set_ups',
        nargs='+',
        type=set_up,
        metavar='SETUP',
        help='GPUSxIMAGES (images per GPU) or NODESxGPUSxIMAGES: 8x4, 2x8x4',
    )
    parser.add_argument('--total-batch', type=positive, default=256)
    parser.add_argument(
        '--bn-size',
        type=bn_size,
        default=32,
        help="images over which BatchNorm takes its statistics, or 'none' "
        'for those of all GPUs (default: 32)',
    )
    parser.add_argument(
        '--images',
        type=positive,
        default=117266,
        help="images of the data set (default: COCO's with objects)",
    )
    args = parser.parse_args(argv)
    columns, refusals = [], []
    for hardware in args.set_ups:
        nodes, gpus, images = hardware
        try:
            plan = recipe.BatchPlan(
                nodes * gpus, images, args.total_batch, args.bn_size
            )
        except recipe.PlanError as error:
            refusals.append(f'error: {hardware} does not run: {error}')
            continue
        rows = recipe.plan_rows(plan, args.images)
        if nodes > 1:
            rows['GPUs'] += f' ({nodes} nodes x {gpus})'
        columns.append(rows)
    if columns:
        print(recipe.format_table(columns))
    for refusal in refusals:
        print(refusal, file=sys.stderr)
    return 1 if refusals else 0


if __name__ == '__main__':
    sys.exit(main())
