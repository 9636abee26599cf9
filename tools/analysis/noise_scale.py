# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Say which batch and learning rate a run's gradient noise allows.

Reads what GradientNoiseHook measured, ``WORK_DIR/grad_noise.jsonl``, of a
running job too. ``docs/which_batch.md`` has the formulas.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from math import inf, isnan

import numpy as np
from figures import save, work_dir_parser
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from mmdet_megdet.arguments import positive, positive_number
from mmdet_megdet.cli import run_tool
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.noise import (
    TOTAL,
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
Phases = list[list[Measurement]]
# A learning rate, and the images an update with which it works.
Start = tuple[float, int]


def phases(records: list[Measurement], number: int) -> Phases:
    """Split measurements into phases of equal size, of 8 or more each."""
    number = max(1, min(number, len(records) // 8))
    cuts = [len(records) * i // number for i in range(number + 1)]
    return [records[a:b] for a, b in pairwise(cuts)]


def part_scale(records: list[Measurement], part: str) -> NoiseScale:
    """Estimate a part's noise scale, in images, from measurements."""
    having = [r.parts[part] for r in records if part in r.parts]
    return noise_scale([m['g2'] for m in having], [m['s'] for m in having])


def phase_table(split: Phases, parts: list[str]) -> Table:
    """Tabulate the noise scale of each part in each phase."""
    title = 'Gradient noise scale, in images (with 95 % interval)'
    table = Table('updates', *parts, title=title)
    for phase in split:
        table.add_row(
            f'{phase[0].update} to {phase[-1].update}',
            *(str(part_scale(phase, name)) for name in parts),
        )
    return table


def advice_table(scale: NoiseScale, part: str, start: Start) -> Table:
    """Tabulate what follows for batches from 16 to 4096 images."""
    lr, lr_batch = start
    table = Table(
        'batch',
        'epochs, x a very small batch',
        'learning rate, upper bound (SGD)',
        'linear rule',
        'square-root rule',
        title=f'{part}: from a learning rate of {lr:g} at {lr_batch} images',
    )
    scales = _values(scale)
    for batch in BATCHES:
        table.add_row(
            str(batch),
            _between([epochs_factor(batch, n) for n in scales]),
            _between([noise_limited_lr(*start, batch, n) for n in scales]),
            f'{linear_lr(*start, batch):.3g}',
            f'{square_root_lr(*start, batch):.3g}',
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
    elif scale.high > 4 * max(scale.low, 1e-9):
        notes.append(
            'The interval is wide: take the order of magnitude from it, or '
            'measure more updates.'
        )
    notes.append(
        'Losses that each rank or micro-step divides by a count of its own '
        'are not means over images: their parts are estimates.'
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
    split: Phases, parts: list[str], scale: NoiseScale, start: Start
) -> Figure:
    """Draw the noise scale over the training, and the learning rates."""
    figure = Figure(figsize=(12, 4.5), layout='constrained')
    axes = figure.subplots(1, 2)
    _draw_scales(axes[0], split, parts)
    _draw_rates(axes[1], scale, start)
    for axis in axes:
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    return figure


def _draw_scales(axis: Axes, split: Phases, parts: list[str]) -> None:
    middles = [(p[0].update + p[-1].update) / 2 for p in split]
    for name in parts:
        scales = [part_scale(phase, name)[:3] for phase in split]
        values, lows, tops = np.array(scales).T
        # Where no gradient shows, its lower end is what is known.
        values = np.where(values < inf, values, lows)
        width = 2.2 if name == TOTAL else None
        axis.plot(middles, values, marker='o', label=name, lw=width)
        if name == TOTAL:
            tops = np.where(tops < inf, tops, values)
            axis.fill_between(middles, lows, tops, alpha=0.2)
    axis.set(xlabel='update', ylabel='noise scale (images)')
    # A noise scale may be 0 by chance.
    axis.set_yscale('symlog', linthresh=1)


def _draw_rates(axis: Axes, scale: NoiseScale, start: Start) -> None:
    rules = {'linear rule': linear_lr, 'square-root rule': square_root_lr}
    for label, rule in rules.items():
        rates = [rule(*start, batch) for batch in BATCHES]
        axis.plot(BATCHES, rates, '--', label=label)
    allowed, low, high = (
        [noise_limited_lr(*start, batch, n) for batch in BATCHES]
        for n in _values(scale)
    )
    axis.plot(BATCHES, allowed, label='the noise allows', linewidth=2.2)
    axis.fill_between(BATCHES, low, high, alpha=0.2)
    lr, lr_batch = start
    axis.plot([lr_batch], [lr], 'ko')
    axis.set(
        xlabel='images an update',
        ylabel='learning rate (upper bound)',
        xscale='log',
        yscale='log',
    )
    axis.set_xticks(BATCHES, [str(batch) for batch in BATCHES])


def _values(scale: NoiseScale) -> tuple[float, float, float]:
    return scale.value, max(scale.low, 1e-9), scale.high


def _between(values: Sequence[float]) -> str:
    value, *ends = values
    low, high = sorted(ends)
    return f'{value:.3g} ({low:.3g} to {high:.3g})'


def main(argv: Sequence[str] | None = None) -> None:
    """Print tables, and draw."""
    parser = work_dir_parser(__doc__, FIGURE)
    add = parser.add_argument
    working = 'a learning rate that works (default: the largest of the run)'
    add('--lr', type=positive_number, help=working)
    images = 'images an update that it works with (default: those of the run)'
    add('--lr-batch', type=positive, help=images)
    part = 'the part of the model that the advice is for, as measured (total)'
    add('--part', default=TOTAL, help=part)
    number = 'phases to tell apart, at most; the advice is for the last (4)'
    add('--phases', type=positive, default=4, help=number)
    args = parser.parse_args(argv)
    records = read_records(args.work_dir)
    last = records[-1]
    batch = last.total_batch_size
    same = [r for r in records if r.total_batch_size == batch]
    if len(same) < len(records):
        print(
            f'note: {len(records) - len(same)} measurements with another '
            f'batch than the last, {batch} images, are left out',
            file=sys.stderr,
        )
    lr = args.lr or max(record.lr for record in same)
    start = lr, args.lr_batch or batch
    if args.part not in last.parts:
        raise ConfigError(
            f'--part {args.part}: measured were {", ".join(last.parts)}'
        )
    parts = [*dict.fromkeys(name for r in same for name in r.parts)]
    split = phases(same, args.phases)
    scale = part_scale(split[-1], args.part)
    if isnan(scale.value):
        raise ConfigError(
            'every measured gradient is zero: is the model frozen?'
        )
    out = args.out or args.work_dir / FIGURE
    save(draw(split, parts, scale, start), out)
    console = Console()
    console.print(phase_table(split, parts))
    console.print(advice_table(scale, args.part, start))
    for text in (in_words(scale, batch), *trust(split[-1], scale)):
        console.print(text, highlight=False)
    print(f'wrote {out}')


if __name__ == '__main__':
    run_tool(main)
