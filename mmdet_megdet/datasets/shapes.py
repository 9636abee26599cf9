# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Command line of the embedded data set.

Example::

    python -m mmdet_megdet.datasets.shapes data/shapes --train 320 --val 80
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from rich.console import Console

from .generate import generate_shapes


def main(argv: Sequence[str] | None = None) -> int:
    """Generate the data set that the command line describes.

    Args:
        argv (Sequence[str], optional): Arguments. Defaults to None: the
            process's own.

    Returns:
        int: Exit status: 0, or 1 where it can't be written.
    """
    args = _parser().parse_args(argv)
    console = Console()
    try:
        paths = generate_shapes(
            args.out,
            train=args.train,
            val=args.val,
            size=args.size,
            seed=args.seed,
            vary_light=args.vary_light,
            console=console,
        )
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    for split in paths.values():
        console.print(
            f'{split.annotations}  {split.images}/',
            highlight=False,
            soft_wrap=True,
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m mmdet_megdet.datasets.shapes',
        description='Generate pictures of shapes in COCO format.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('out', help='folder of the data set')
    parser.add_argument(
        '--train', type=int, default=320, help='number of training pictures'
    )
    parser.add_argument(
        '--val', type=int, default=80, help='number of validation pictures'
    )
    parser.add_argument(
        '--size',
        type=_size,
        default='128',
        metavar='SIDE|WxH',
        help='size in pixels: 128 or 160x128',
    )
    parser.add_argument('--seed', type=int, default=0, help='random seed')
    parser.add_argument(
        '--vary-light',
        action='store_true',
        help='vary gain, colour cast, offset and noise from picture to '
        'picture',
    )
    return parser


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r'(\d+)(?:x(\d+))?', text)
    if not match:
        raise argparse.ArgumentTypeError(
            f'{text!r} is neither a side such as 128 nor a width and height '
            'such as 160x128'
        )
    width, height = match.groups()
    return int(width), int(height or width)


if __name__ == '__main__':
    sys.exit(main())
