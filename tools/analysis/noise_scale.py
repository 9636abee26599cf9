# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Say which batch and learning rate a run's gradient noise allows.

Reads what GradientNoiseHook measured, ``WORK_DIR/grad_noise.jsonl``, of a
running job too. ``docs/which_batch.md`` has the formulas.

Example::

    python tools/analysis/noise_scale.py work_dirs/r50_fpn_256bs
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from itertools import pairwise
from math import inf, isnan
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from mmdet_megdet.arguments import positive, positive_number
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.noise import (
    Measurement,
    NoiseScale,
    epochs_factor,
    linear_lr,
    noise_limited_lr,
    noise_scale,
    read_records,
    square_root_lr,
)

BATCHES = tuple(2**power for power in range(4, 13))
FIGURE = 'noise_scale.png'
# An interval as wide as this says the order of magnitude at best.
_WIDE = 4


def phases(records: list[Measurement], number: int) -> list[list[Measurement]]:
    """Split measurements into phases of equal size, of 8 or more each."""
    number = max(1, min(number, len(records) // 8))
    cuts = [len(records) * i // number for i in range(number + 1)]
    return [records[a:b] for a, b in pairwise(cuts)]


def part_scale(records: list[Measurement], part: str) -> NoiseScale:
    """Estimate a part's noise scale, in images, from measurements."""
    having = [r.parts[part] for r in records if part in r.parts]
    return noise_scale([m['g2'] for m in having], [m['s'] for m in having])


def parts_of(records: list[Measurement]) -> list[str]:
    """Return the names of the measured parts, the total first."""
    names = dict.fromkeys(name for r in records for name in r.parts)
    return sorted(names, key=lambda name: name != 'total')


def phase_table(split: list[list[Measurement]]) -> Table:
    """Tabulate the noise scale of each part in each phase."""
    names = parts_of([record for phase in split for record in phase])
    table = Table(title='Gradient noise scale, in images (with 95 % interval)')
    table.add_column('updates')
    for name in names:
        table.add_column(name, justify='right')
    for phase in split:
        table.add_row(
            f'{phase[0].update} to {phase[-1].update}',
            *(str(part_scale(phase, name)) for name in names),
        )
    return table


def advice_table(
    scale: NoiseScale, part: str, lr: float, lr_batch: int
) -> Table:
    """Tabulate what follows for batches from 16 to 4096 images.

    From a learning rate that works with ``lr_batch`` images an update.
    """
    table = Table(
        title=f'{part}: from a learning rate of {lr:g} at {lr_batch} images'
    )
    for name in (
        'batch',
        'epochs, x a very small batch',
        'learning rate, upper bound (SGD)',
        'linear rule',
        'square-root rule',
    ):
        table.add_column(name, justify='right')
    for batch in BATCHES:
        factors = [epochs_factor(batch, n) for n in _values(scale)]
        rates = [
            noise_limited_lr(lr, lr_batch, batch, n) for n in _values(scale)
        ]
        table.add_row(
            str(batch),
            _between(factors),
            _between(rates),
            f'{linear_lr(lr, lr_batch, batch):.3g}',
            f'{square_root_lr(lr, lr_batch, batch):.3g}',
        )
    return table


def trust(records: list[Measurement], scale: NoiseScale) -> list[str]:
    """Say how far a phase's measurements and estimate can be trusted."""
    last = records[-1]
    parts = last.groups * last.micro_steps
    notes = [
        f'{scale.measurements} measurements of {parts} independent parts '
        f'({last.part_images} images each) in an update.'
    ]
    if scale.value == inf or scale.high == inf:
        notes.append(
            'The gradient cannot be told from noise yet: the noise scale is '
            f'above {scale.low:.3g} images, and its upper end is open. '
            'Measure more updates, or with a larger batch.'
        )
    elif scale.high > _WIDE * max(scale.low, 1e-9):
        notes.append(
            'The interval is wide: take the order of magnitude from it, or '
            'measure more updates.'
        )
    notes.append(
        'Losses that each rank or micro-step divides by a count of its own '
        'are not means over images: their parts are estimates. The learning '
        'rate is an upper bound: stability sets another limit, which the '
        'noise does not know.'
    )
    return notes


def in_words(scale: NoiseScale, batch: int) -> str:
    """Say what the current batch costs, beside half and twice of it."""
    if scale.value == inf:
        return f'What {batch} images an update cost cannot be told yet.'
    texts = [
        f'At a noise scale of {scale} images, {batch} images an '
        f'update take {epochs_factor(batch, scale.value):.2f} times the '
        'epochs of a very small batch.'
    ]
    for other, name in ((batch / 2, 'Half'), (batch * 2, 'Twice')):
        epochs = (scale.value + other) / (scale.value + batch)
        updates = epochs * batch / other
        texts.append(
            f'{name} of it would take {epochs:.2f} times the epochs that '
            f'this batch takes, in {updates:.2f} times the updates.'
        )
    return ' '.join(texts)


def draw(
    split: list[list[Measurement]], scale: NoiseScale, lr: float, lr_batch: int
) -> Figure:
    """Draw the noise scale over the training, and the learning rates."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 4.5), layout='constrained'
    )
    _draw_scales(left, split)
    _draw_rates(right, scale, lr, lr_batch)
    return figure


def _draw_scales(axis: Axes, split: list[list[Measurement]]) -> None:
    middles = [(p[0].update + p[-1].update) / 2 for p in split]
    for name in parts_of([record for phase in split for record in phase]):
        scales = [part_scale(phase, name) for phase in split]
        # Where no gradient shows, its lower end is what is known.
        values = [s.value if s.value < inf else s.low for s in scales]
        style = dict(linewidth=2.2) if name == 'total' else {}
        axis.plot(middles, values, marker='o', label=name, **style)
        if name == 'total':
            lows = [s.low for s in scales]
            tops = [
                s.high if s.high < inf else value
                for s, value in zip(scales, values, strict=True)
            ]
            axis.fill_between(middles, lows, tops, alpha=0.2)
    axis.set(xlabel='update', ylabel='noise scale (images)')
    # A noise scale may be 0 by chance.
    axis.set_yscale('symlog', linthresh=1)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _draw_rates(
    axis: Axes, scale: NoiseScale, lr: float, lr_batch: int
) -> None:
    for label, rule in (
        ('linear rule', linear_lr),
        ('square-root rule', square_root_lr),
    ):
        rates = [rule(lr, lr_batch, batch) for batch in BATCHES]
        axis.plot(BATCHES, rates, '--', label=label)
    rates = [
        [noise_limited_lr(lr, lr_batch, batch, n) for batch in BATCHES]
        for n in _values(scale)
    ]
    axis.plot(BATCHES, rates[0], label='the noise allows', linewidth=2.2)
    axis.fill_between(BATCHES, rates[1], rates[2], alpha=0.2)
    axis.plot([lr_batch], [lr], 'ko')
    axis.set(
        xlabel='images an update',
        ylabel='learning rate (upper bound)',
        xscale='log',
        yscale='log',
    )
    axis.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _values(scale: NoiseScale) -> tuple[float, float, float]:
    return scale.value, max(scale.low, 1e-9), scale.high


def _between(values: Sequence[float]) -> str:
    value, *ends = values
    low, high = sorted(ends)
    return f'{value:.3g} ({low:.3g} to {high:.3g})'


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description='Say which batch and learning rate the gradient noise of '
        'a run allows.'
    )
    parser.add_argument('work_dir', type=Path, help='work dir of the run')
    parser.add_argument(
        '--lr',
        type=positive_number,
        help='a learning rate that works (default: the largest of the run)',
    )
    parser.add_argument(
        '--lr-batch',
        type=positive,
        help='images an update that it works with (default: those of the run)',
    )
    parser.add_argument(
        '--part',
        default='total',
        help='the part of the model that the advice is for, as the first '
        'table names them (total)',
    )
    parser.add_argument(
        '--phases',
        type=positive,
        default=4,
        help='phases of the training to tell apart, at most; the advice is '
        'for the last (4)',
    )
    parser.add_argument(
        '--out',
        type=Path,
        help=f'figure to write (default: WORK_DIR/{FIGURE})',
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print tables, and draw; return 0, or 1 where nothing was measured."""
    args = parse_args(argv)
    out = args.out or args.work_dir / FIGURE
    try:
        records = read_records(args.work_dir)
        batch = records[-1].total_batch_size
        same = [r for r in records if r.total_batch_size == batch]
        if len(same) < len(records):
            print(
                f'note: {len(records) - len(same)} measurements with another '
                f'batch than the last, {batch} images, are left out',
                file=sys.stderr,
            )
        lr = args.lr or max(record.lr for record in same)
        lr_batch = args.lr_batch or batch
        split = phases(same, args.phases)
        names = parts_of(split[-1])
        if args.part not in names:
            raise ConfigError(
                f'--part {args.part}: measured were {", ".join(names)}'
            )
        scale = part_scale(split[-1], args.part)
        if isnan(scale.value):
            raise ConfigError(
                'every measured gradient is zero: is the model frozen?'
            )
        figure = draw(split, scale, lr, lr_batch)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=120)
        plt.close(figure)
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    console = Console()
    console.print(phase_table(split))
    console.print(advice_table(scale, args.part, lr, lr_batch))
    for text in (in_words(scale, batch), *trust(split[-1], scale)):
        console.print(text, highlight=False)
    print(f'wrote {out}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
