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

    That would import torch, which takes seconds.
    """
    bare = ModuleType('bare_mmdet_megdet')
    package = importlib.util.find_spec('mmdet_megdet')
    bare.__path__ = package.submodule_search_locations
    sys.modules.setdefault(bare.__name__, bare)
    return importlib.import_module(f'{bare.__name__}.{name}')


recipe = load_part('recipe')
_arguments = load_part('arguments')
positive, bn_size = _arguments.positive, _arguments.bn_size
positive_number = _arguments.positive_number


class SetUp(NamedTuple):
    """Nodes, GPUs a node, and images per GPU."""

    nodes: int
    gpus: int
    images: int

    @property
    def world_size(self) -> int:
        """The number of GPUs, one rank each."""
        return self.nodes * self.gpus

    def __str__(self) -> str:
        numbers = self if self.nodes > 1 else self[1:]
        return 'x'.join(map(str, numbers))


def images(text: str) -> int:
    """Read a number of images, or count those of a config."""
    return count_images(text) if text.endswith('.py') else positive(text)


def count_images(config: str) -> int:
    """Count the images of a config's training data set, as mmdet filters."""
    # Slow, and not needed for numbers.
    from mmengine.config import Config

    from mmdet_megdet.annotations import judge, training_epoch

    if not Path(config).is_file():
        raise argparse.ArgumentTypeError(f'there is no config file {config}')
    cfg = Config.fromfile(config)
    judgement = judge(cfg, ('train',))
    epoch = training_epoch(cfg, judgement)
    if epoch is None:
        found = [v.text for v in judgement.verdicts if v.level != 'sound']
        raise argparse.ArgumentTypeError(
            ' '.join(found) or f'the data set of {config} cannot be counted'
        )
    return epoch.images


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


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        description='Print what a recipe comes to on given hardware.',
        allow_abbrev=False,
    )
    parser.add_argument(
        'set_ups',
        nargs='*',
        type=set_up,
        metavar='SETUP',
        help='GPUSxIMAGES (images per GPU) or NODESxGPUSxIMAGES: 8x4, 2x8x4',
    )
    hardware = parser.add_argument_group('one set-up in words')
    hardware.add_argument('--gpus', type=positive, help='GPUs of a node')
    hardware.add_argument('--nodes', type=positive, default=1)
    hardware.add_argument('--images-per-gpu', type=positive)
    hardware.add_argument(
        '--memory',
        type=positive_number,
        metavar='GB',
        help='memory of a GPU, instead of --images-per-gpu: the most images '
        'that fit and divide, by the two figures that follow',
    )
    hardware.add_argument(
        '--gb-per-image',
        type=positive_number,
        metavar='GB',
        help='memory that one more image per GPU takes. It depends on model, '
        'image size and precision, so it has to be measured: the '
        "difference in the training log's `memory` between two runs, divided "
        'by that in their images per GPU',
    )
    hardware.add_argument(
        '--gb-fixed',
        type=positive_number,
        metavar='GB',
        help='memory that is taken whatever the images: the `memory` of such '
        'a run less its images x --gb-per-image',
    )
    batch = parser.add_argument_group('the recipe')
    batch.add_argument('--total-batch', type=positive, default=256)
    batch.add_argument(
        '--bn-size',
        type=bn_size,
        default=32,
        help="images over which BatchNorm takes its statistics, or 'none' "
        'for those of all GPUs (default: 32)',
    )
    batch.add_argument(
        '--images',
        type=images,
        default=117266,
        metavar='N|CONFIG',
        help="images of the data set (default: COCO's with objects), or a "
        'config whose training data set is counted',
    )
    batch.add_argument('--warmup-updates', type=positive, default=1000)
    batch.add_argument(
        '--lr',
        type=positive_number,
        help='a learning rate that is known to work with --lr-batch images '
        'an update; the linear rule then gives that for --total-batch',
    )
    batch.add_argument('--lr-batch', type=positive)
    return parser


def read_set_ups(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> list[SetUp]:
    """Return the set-ups of the command line, in either form."""
    by_memory = args.memory, args.gb_per_image, args.gb_fixed
    if None in by_memory and any(by_memory):
        parser.error(
            '--memory needs --gb-per-image and --gb-fixed, which depend on '
            'the model and have to be measured (see --help)'
        )
    if (args.lr is None) != (args.lr_batch is None):
        parser.error('--lr and --lr-batch belong together')
    images_given = (args.images_per_gpu is not None) + any(by_memory)
    if args.set_ups:
        if args.gpus or args.nodes > 1 or images_given:
            parser.error(
                'give set-ups as 8x4, or one by --gpus and --images-per-gpu'
            )
        return args.set_ups
    if not args.gpus or images_given != 1:
        parser.error(
            'give set-ups as 8x4, or one by --gpus and either '
            '--images-per-gpu or --memory'
        )
    images = args.images_per_gpu or images_that_fit(args)
    return [SetUp(args.nodes, args.gpus, images)]


def images_that_fit(args: argparse.Namespace) -> int:
    """Return the most images per GPU that fit and divide the batch.

    Where none does, the most that fit: the plan then tells what is wrong.
    """
    fit = int((args.memory - args.gb_fixed) / args.gb_per_image)
    if fit < 1:
        sys.exit(
            f'error: not one image fits: {args.memory:g} GB less '
            f'{args.gb_fixed:g} GB are less than {args.gb_per_image:g} GB.'
        )
    world_size = args.nodes * args.gpus
    most = (
        recipe.most_images(world_size, fit, args.total_batch, [args.bn_size])
        or fit
    )
    print(
        f'{fit} image(s) fit a GPU: ({args.memory:g} GB - {args.gb_fixed:g} '
        f'GB) / {args.gb_per_image:g} GB. The plan is for {most}.'
    )
    return most


def make_plan(hardware: SetUp, args: argparse.Namespace) -> recipe.BatchPlan:
    """Make the plan for one set-up.

    Raises:
        PlanError: If the numbers do not divide.
    """
    return recipe.BatchPlan(
        hardware.world_size, hardware.images, args.total_batch, args.bn_size
    )


def describe(
    plan: recipe.BatchPlan, hardware: SetUp, args: argparse.Namespace
) -> dict[str, str]:
    """Return a column of the table."""
    rows = recipe.plan_rows(plan, args.images)
    if hardware.nodes > 1:
        rows['GPUs'] += f' ({hardware.nodes} nodes x {hardware.gpus})'
    rows['warm-up'] = f'{args.warmup_updates} updates'
    if args.lr is not None:
        rows['learning rate'] = f'{plan.learning_rate(args.lr, args.lr_batch)}'
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plans; return the exit status."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    columns, refusals = [], []
    for hardware in read_set_ups(parser, args):
        try:
            plan = make_plan(hardware, args)
        except recipe.PlanError as error:
            refusals.append(f'error: {hardware} does not run: {error}')
            continue
        columns.append(describe(plan, hardware, args))
    if columns:
        print(recipe.format_table(columns))
        if args.lr is not None:
            print(f'\n{recipe.LINEAR_RULE}')
    for refusal in refusals:
        print(refusal, file=sys.stderr)
    return 1 if refusals else 0


if __name__ == '__main__':
    sys.exit(main())
