# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDetSyncBN on a GPU: exact, and faster than nn.SyncBatchNorm?

Checks the real kernels against plain operations in float64, times the layer
beside ``nn.SyncBatchNorm`` at a ResNet-50's sizes in all dtypes and layouts,
captures it in a CUDA graph, counts host synchronisations and peak memory, and
times a training step of the recipe. One rank, since NCCL does not let two
share a GPU: both layers synchronise in a group of one.

Without a GPU ``--device cpu`` goes through the same parts: layers in Triton's
interpreter, the training step by plain operations. Its times mean nothing.

Example::

    tools/benchmark/gpu_report.sh --out work_dirs/gpu_report.md
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import bn_cuda
import torch
from bench_ranks import positive, run_ranks
from bench_sync_bn import R50_FPN_SHAPES, shape_of
from bn_layers import OneRankMegDetSyncBN, TorchSyncBN
from bn_measure import make_batch, peak_memory, time_alternating
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from mmdet_megdet.sync_bn import kernels
from mmdet_megdet.sync_bn.kernels import check

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / 'configs' / 'megdet' / 'r50_fpn_256bs.py'
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OURS, THEIRS = 'MegDetSyncBN', 'nn.SyncBatchNorm'
MIB = 1 << 20
HEADINGS = (
    'what',
    'dtype',
    'layout',
    'largest error by its bound',
    f'{OURS} ms',
    f'{THEIRS} ms',
    'x theirs',
    'x traffic limit',
    'peak MiB, ours / theirs',
    'host syncs, ours / theirs',
    'CUDA graph replay ms, ours / theirs',
)


class Settings(NamedTuple):
    """What is measured.

    Attributes:
        shapes (list[tuple]): (N, C, H, W) of the layers' inputs.
        repeats (int): Samples of each layer.
        images (int): Of the training step.
        size (tuple[int]): Their width and height.
        steps (int): Of each kind.
        out (Path): The table's file.
    """

    shapes: list[tuple[int, ...]]
    repeats: int
    images: int
    size: tuple[int, int]
    steps: int
    out: Path


def measure(device: torch.device, settings: Settings) -> int:
    """Write the table, after each part; called on the one rank.

    Returns:
        int: How many rows are beyond their bounds.
    """
    import triton

    machine = 'CPU, interpreted: its times mean nothing'
    bandwidth = None
    if device.type == 'cuda':
        machine = f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}'
        bandwidth = bn_cuda.copy_bandwidth()
    caption = (
        f'{machine}; torch {torch.__version__}, triton {triton.__version__}; '
        f'{settings.repeats} samples; one rank, in a group of one.'
    )
    rows = []
    for part in (layers, small_inputs, steps):
        begin = time.perf_counter()
        rows += part(device, settings, bandwidth)
        settings.out.write_text(markdown(rows, caption))
        seconds = time.perf_counter() - begin
        print(f'{part.__name__}: {seconds:.0f} s', file=sys.stderr, flush=True)
    return sum(row[3].endswith('WRONG') for row in rows)


def layers(
    device: torch.device, settings: Settings, bandwidth: float | None
) -> Iterator[list[str]]:
    """One row for each shape, dtype and layout."""
    for shape in settings.shapes:
        for dtype in DTYPES:
            for channels_last in (False, True):
                yield layer_row(
                    device, shape, dtype, channels_last, settings, bandwidth
                )


def layer_row(
    device: torch.device,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    channels_last: bool,
    settings: Settings,
    bandwidth: float | None,
) -> list[str]:
    """Exactness and cost of a single layer."""
    batch = make_batch(shape, dtype, channels_last, device)
    kinds = {OURS: OneRankMegDetSyncBN}
    if device.type == 'cuda':
        kinds[THEIRS] = TorchSyncBN
    present = {name: kind(shape[1]).to(device) for name, kind in kinds.items()}
    seconds = time_alternating(present, batch, settings.repeats, lambda: None)
    medians = {
        name: values.sum(1).quantile(0.5).item()
        for name, values in seconds.items()
    }
    peaks = [peak_memory(layer, batch) / MIB for layer in present.values()]
    syncs, replays, limit = [], [], '-'
    if bandwidth is not None:
        syncs = [bn_cuda.host_syncs(v, batch) for v in present.values()]
        # Last, since a capture that fails may leave the GPU in a bad state.
        replays = [bn_cuda.graph_replay(v, batch) for v in present.values()]
        share = bn_cuda.bandwidth_share(batch, medians[OURS], bandwidth)
        limit = f'{1 / share:.2f}'
    n, c, height, width = shape
    case = check.Case(
        shape if channels_last else (n, c, height * width), few_programs=False
    )
    return [
        'x'.join(map(str, shape)),
        name_of(dtype),
        'channels last' if channels_last else 'contiguous',
        largest_error(device, dtype, case),
        *times(medians),
        limit,
        ' / '.join(f'{peak:.4g}' for peak in peaks),
        ' / '.join(map(str, syncs)) or '-',
        ' / '.join(
            f'{r * 1e3:.3f}' if isinstance(r, float) else f'none ({r})'
            for r in replays
        )
        or '-',
    ]


def small_inputs(
    device: torch.device, settings: Settings, bandwidth: float | None
) -> Iterator[list[str]]:
    """Exactness in all kinds for which kernels are compiled; float64 too."""
    on_gpu = device.type == 'cuda'
    for dtype in (*DTYPES, torch.float64) if on_gpu else DTYPES[:2]:
        for case in check.CASES if on_gpu else check.CASES[1:3]:
            kind = f'affine {case.affine}, running {case.running}'
            yield [
                f'{"x".join(map(str, case.shape))}, {kind}, '
                f'momentum {case.momentum}',
                name_of(dtype),
                'channels last' if len(case.shape) == 4 else 'contiguous',
                largest_error(device, dtype, case),
                *['-'] * 7,
            ]


def largest_error(
    device: torch.device, dtype: torch.dtype, case: check.Case
) -> str:
    """The worst quantity of a step, with its name."""
    from mmdet_megdet.sync_bn.kernels import fused

    parameters = dtype if dtype == torch.float64 else torch.float32
    found = check.errors(fused, device, dtype, parameters, case)
    # A NaN is above any bound.
    worst = max(
        found, key=lambda name: (found[name] != found[name], found[name])
    )
    verdict = '' if found[worst] <= 1 else ' WRONG'
    return f'{found[worst]:.2g} ({worst}){verdict}'


def steps(
    device: torch.device, settings: Settings, bandwidth: float | None
) -> Iterator[list[str]]:
    """The recipe's training step with each kind of BatchNorm."""
    if device.type == 'cpu':
        # The interpreter would take hours.
        os.environ[kernels.VARIABLE] = 'plain'
    width, height = settings.size
    name = f'{settings.images} images of {width}x{height}'
    try:
        from training_steps import time_in_turns
    except ImportError as error:
        yield [f'training step, {name}: not run ({error})', *['-'] * 10]
        return
    makers = [detector, base] if has_ops(device) else [base]
    for make in makers:
        kinds = {
            norm: make(norm, device, settings)
            for norm in ('BN', 'OneRankMegDetSyncBN', 'TorchSyncBN')
            if norm != 'TorchSyncBN' or device.type == 'cuda'
        }
        for dtype in DTYPES[:2] if device.type == 'cuda' else DTYPES[:1]:
            turns = {
                norm: partial(under_autocast, step, device, dtype)
                for norm, step in kinds.items()
            }
            seconds = time_in_turns(turns, settings.steps, device, False)
            medians = [
                torch.tensor(values).quantile(0.5).item()
                for values in seconds.values()
            ]
            plain, *ours = medians
            named = dict(zip((OURS, THEIRS), ours, strict=False))
            yield [
                f'{make.__doc__.splitlines()[0]} {name}; with plain '
                f'BatchNorm {plain * 1e3:.1f} ms',
                name_of(dtype),
                'contiguous',
                '-',
                *times(named),
                *['-'] * 4,
            ]


def under_autocast(step, device: torch.device, dtype: torch.dtype) -> None:
    """A step in mixed precision, or in float32."""
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        step()


def has_ops(device: torch.device) -> bool:
    """Whether mmcv's ops run on the device."""
    if device.type == 'cpu':
        return True
    from mmcv.ops import get_compiling_cuda_version

    return get_compiling_cuda_version() != 'not available'


def recipe(norm: str) -> Config:
    """The recipe's config with another norm layer, and nothing to download."""
    for kind in (OneRankMegDetSyncBN, TorchSyncBN):
        MODELS.register_module(module=kind, force=True)
    cfg = Config.fromfile(RECIPE)
    norm_cfg = dict(type=norm, requires_grad=True)
    cfg.model.backbone.norm_cfg = cfg.model.neck.norm_cfg = norm_cfg
    cfg.model.backbone.init_cfg = None
    return cfg


def detector(norm: str, device: torch.device, settings: Settings):
    """Training step of the recipe's detector,

    images and boxes generated.
    """
    from training_steps import make_batch as make_images
    from training_steps import make_model

    model, wrapper = make_model(norm, device, recipe(norm))
    batch = make_images(settings.images, settings.size, with_masks=True)
    return partial(model.train_step, batch, wrapper)


def base(norm: str, device: torch.device, settings: Settings):
    """Forward and backward of the recipe's backbone and FPN,

    on random numbers.
    """
    import mmdet.models  # noqa: F401
    from mmengine.registry import init_default_scope

    init_default_scope('mmdet')
    cfg = recipe(norm)
    model = nn.Sequential(
        MODELS.build(cfg.model.backbone), MODELS.build(cfg.model.neck)
    )
    model = model.to(device).train()
    width, height = settings.size
    sides = (-(-side // 32) * 32 for side in (height, width))
    x = torch.randn(settings.images, 3, *sides, device=device)

    def step() -> None:
        model.zero_grad()
        sum(level.float().square().mean() for level in model(x)).backward()

    return step


def times(medians: dict[str, float]) -> list[str]:
    """Milliseconds of ours and theirs, and their ratio."""
    ours, theirs = medians[OURS], medians.get(THEIRS)
    if theirs is None:
        return [f'{ours * 1e3:.3f}', '-', '-']
    return [f'{ours * 1e3:.3f}', f'{theirs * 1e3:.3f}', f'{ours / theirs:.2f}']


def name_of(dtype: torch.dtype) -> str:
    """'float32' and so on."""
    return str(dtype).removeprefix('torch.')


def markdown(rows: list[list[str]], caption: str) -> str:
    """The table as text."""
    lines = [HEADINGS, ['---'] * len(HEADINGS), *rows]
    table = '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
    return f'{caption}\n\n{table}\n'


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument(
        '--shapes',
        nargs='+',
        type=shape_of,
        default=R50_FPN_SHAPES,
        metavar='N,C,H,W',
    )
    parser.add_argument('--repeats', type=positive, default=10)
    parser.add_argument('--images', type=positive, default=4)
    parser.add_argument(
        '--size',
        nargs=2,
        type=positive,
        default=(1333, 800),
        metavar=('WIDTH', 'HEIGHT'),
    )
    parser.add_argument('--steps', type=positive, default=5)
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/gpu_report.md')
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the report."""
    args = parse_args(argv)
    os.environ[kernels.VARIABLE] = 'triton'
    if args.device == 'cpu':
        os.environ['TRITON_INTERPRET'] = '1'
    args.out.parent.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        args.shapes,
        args.repeats,
        args.images,
        tuple(args.size),
        args.steps,
        args.out,
    )
    wrong = run_ranks(measure, 1, args.device, 1, settings)
    print(args.out.read_text())
    if wrong:
        sys.exit(f'error: {wrong} rows are beyond their bounds')


if __name__ == '__main__':
    main()
