# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDetSyncBN on a GPU: exact, and faster than nn.SyncBatchNorm?

Checks the real kernels against plain operations in float64, times the layer
beside ``nn.SyncBatchNorm`` at a ResNet-50's sizes in all dtypes and layouts
(``bench_sync_bn.py``), and times a training step of the recipe
(``bench_train_step.py``). One rank, since NCCL does not let two share a GPU:
layers synchronise in a group of one.

Without a GPU ``--device cpu`` goes through the same parts: layers in Triton's
interpreter, the training step by plain operations. Its times mean nothing.

Example::

    tools/benchmark/gpu_report.sh --out work_dirs/gpu_report.md
"""

from __future__ import annotations

import io
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import bench_sync_bn
from measuring import ROOT, parser_of, positive

from mmdet_megdet.sync_bn.kernels import VARIABLE

RECIPE = ROOT / 'configs' / 'megdet' / 'r50_fpn_256bs.py'


def has_ops(device: str) -> bool:
    """Return whether mmcv's ops, which a detector needs, run there."""
    try:
        from mmcv.ops import get_compiling_cuda_version
    except ImportError:
        return False
    return device == 'cpu' or get_compiling_cuda_version() != 'not available'


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; return the exit status."""
    parser = parser_of(__doc__, size=(1333, 800))
    add = parser.add_argument
    add('--device', choices=('cuda', 'cpu'), default='cuda', help='where')
    add('--shapes', nargs='+', default=[], metavar='N,C,H,W', help='inputs')
    add('--config', default=str(RECIPE), help='whose detector is trained')
    add('--repeats', type=positive, default=10, help='samples of each layer')
    add('--images', type=positive, default=4, help='of the training step')
    add('--size', nargs=2, type=positive, metavar=('W', 'H'), help='of them')
    add('--steps', type=positive, default=5, help='of each kind')
    out = Path('work_dirs/gpu_report.md')
    add('--out', type=Path, default=out, help='the report')
    args = parser.parse_args(argv)
    os.environ[VARIABLE] = 'triton'
    if args.device == 'cpu':
        os.environ['TRITON_INTERPRET'] = '1'
    shapes = ['--shapes', *args.shapes] if args.shapes else []
    common = ['--device', args.device]
    text = io.StringIO()
    with redirect_stdout(text):
        rows = bench_sync_bn.main(
            [
                *(*common, *shapes, '--world-sizes', '1'),
                *('--dtype', *bench_sync_bn.DTYPES),
                *('--layout', *bench_sync_bn.LAYOUTS),
                *('--repeats', str(args.repeats)),
            ]
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text.getvalue())
    with redirect_stdout(text):
        print("\nThe recipe's training step, in float32 and in float16:\n")
        if has_ops(args.device):
            training_steps(args, common)
        else:
            print('Not run: mmcv has no ops here (make setup).')
    args.out.write_text(text.getvalue())
    print(text.getvalue())
    wrong = sum('WRONG' in row.get('largest error', '') for row in rows)
    if wrong:
        print(f'error: {wrong} rows are beyond their bounds', file=sys.stderr)
    return 1 if wrong else 0


def training_steps(args: Namespace, common: list[str]) -> None:
    """Print a table for each precision; on a CPU for float32 alone."""
    import bench_train_step

    if args.device == 'cpu':
        # The interpreter would take hours.
        os.environ[VARIABLE] = 'plain'
    options = [*common, '--world-size', '1', '--config', args.config]
    options += ['--images', str(args.images), '--steps', str(args.steps)]
    options += ['--size', *map(str, args.size)]
    bench_train_step.main(options)
    if args.device == 'cuda':
        bench_train_step.main([*options, '--amp'])


if __name__ == '__main__':
    sys.exit(main())
