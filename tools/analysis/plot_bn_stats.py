# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Show what BNStatsMonitorHook measured: three figures and what stands out.

Reads ``WORK_DIR/bn_stats.jsonl``, of a running job too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from figures import save, work_dir_parser
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.console import Console
from rich.table import Table

from mmdet_megdet.cli import run_tool
from mmdet_megdet.monitor import Record, read_records

# Up to so many layers each have their name beside the heat map.
MAX_LABELS = 160
# One batch alone is noisy: drift is judged by the last few records.
RECENT = 10
# As many layers are named as those that stand out.
TOP = 5


def forward_order(records: list[Record]) -> list[str]:
    """Return all layers' names in the order of the first forward pass."""
    return [*dict.fromkeys(x.name for r in records for x in r.layers)]


def by_layer(records: list[Record], field: str) -> np.ma.MaskedArray:
    """Return a number of the layers, layers x records, where it is known."""
    rows = {name: row for row, name in enumerate(forward_order(records))}
    values = np.full((len(rows), len(records)), np.nan)
    for column, record in enumerate(records):
        for layer in record.layers:
            # None becomes NaN.
            values[rows[layer.name], column] = getattr(layer, field)
    return np.ma.masked_invalid(values)


def by_rank(records: list[Record], field: str) -> np.ma.MaskedArray:
    """Return seconds of the ranks, ranks x records, where they are known."""
    ranks = max(record.world_size for record in records)
    values = np.full((ranks, len(records)), np.nan)
    for column, record in enumerate(records):
        values[: record.world_size, column] = getattr(record.seconds, field)
    return np.ma.masked_invalid(values)


def largest(records: list[Record], field: str) -> list[tuple[str, float]]:
    """Return the layers and their medians, the largest first."""
    medians = np.ma.median(by_layer(records, field), axis=1).tolist()
    pairs = zip(forward_order(records), medians, strict=True)
    known = [pair for pair in pairs if pair[1] is not None]
    return sorted(known, key=lambda pair: -pair[1])


def waits(records: list[Record]) -> np.ndarray:
    """Return each rank's median seconds in collectives.

    Of the last records with one number of ranks: a training may be resumed on
    other hardware, where rank 3 is another GPU.
    """
    size = records[-1].world_size
    same = takewhile(lambda r: r.world_size == size, reversed(records))
    medians = np.ma.median(by_rank([*same], 'collectives'), axis=1)
    return np.ma.filled(medians, np.nan)


def slow_rank(records: list[Record]) -> int | None:
    """Return the rank for which the others wait: it arrives last, waits least.

    As BNStatsMonitorHook judges it: the others wait twice as long or longer.
    None where no rank is much slower.
    """
    times = waits(records)
    if np.count_nonzero(times > 0) < 2:
        return None
    least = int(np.nanargmin(times))
    others = np.nanmedian(np.delete(times, least))
    return least if others > 2 * times[least] else None


def draw_share(records: list[Record]) -> Figure:
    """Draw the between-rank share of the variance: layers x records.

    The colours are the same for every run.
    """
    names = forward_order(records)
    height = 1.5 + 0.165 * min(max(len(names), 6), MAX_LABELS)
    figure = Figure(figsize=(10, height), layout='constrained')
    axis = figure.subplots()
    image = axis.imshow(
        by_layer(records, 'between_share'),
        aspect='auto',
        cmap='YlGnBu',
        # The root spreads the small shares, which most layers have.
        norm=PowerNorm(0.5, 0, 1),
    )
    axis.patch.set(facecolor='#f3f4f6', edgecolor='#d1d5db', hatch='////')
    step = max(1, math.ceil(len(names) / MAX_LABELS))
    axis.set_yticks(range(0, len(names), step), names[::step], fontsize=8)
    columns = range(0, len(records), math.ceil(len(records) / 8))
    axis.set_xticks(columns, [records[column].iter for column in columns])
    axis.set_xlabel('iteration (a column is a monitored one)')
    axis.set_title('Share of the variance between the ranks', loc='left')
    figure.colorbar(
        image,
        format=PercentFormatter(1),
        ticks=(0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1),
        label='hatched: nothing to compare',
    )
    return figure


def draw_drift(records: list[Record]) -> Figure:
    """Draw how far the batches' means are from the running ones."""
    figure = Figure(figsize=(10, 4.5), layout='constrained')
    axis = figure.subplots()
    values = by_layer(records, 'mean_drift')
    iterations = [record.iter for record in records]
    ends = values.min(0), values.max(0)
    axis.fill_between(iterations, *ends, alpha=0.2, label='all layers')
    middle = np.ma.median(values, axis=0)
    axis.plot(iterations, middle, lw=2, marker='.', label='median')
    names = forward_order(records)
    for name, value in largest(records[-RECENT:], 'mean_drift')[:3]:
        label = f'{name}: {value:.3g} of late'
        axis.plot(iterations, values[names.index(name)], lw=1, label=label)
    axis.set(
        xlabel='iteration',
        ylabel='batch minus running mean,\nin running std deviations',
        # Linear below what is usual, since one batch may be far off.
        yscale='symlog',
    )
    axis.set_ylim(bottom=0)
    axis.set_title('Drift: batches against running statistics', loc='left')
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    return figure


def draw_collectives(records: list[Record]) -> Figure:
    """Draw each rank's time in collectives beside the iteration's."""
    figure = Figure(figsize=(10, 4.5), layout='constrained')
    time, ranks = figure.subplots(1, 2, width_ratios=(2, 1))
    iterations = [record.iter for record in records]
    slow = slow_rank(records)
    for rank, seconds in enumerate(by_rank(records, 'collectives')):
        style = dict(color='#9ca3af', lw=0.8)
        if rank == slow:
            label = f'rank {rank}: waits least'
            style = dict(color='#c2410c', lw=2, zorder=3, label=label)
        time.plot(iterations, 1e3 * seconds, marker='.', **style)
    whole = 1e3 * by_rank(records, 'iteration').max(0)
    time.plot(iterations, whole, 'k.-', lw=2, label='whole iteration')
    time.set(xlabel='iteration', ylabel='milliseconds')
    time.set_title("BatchNorm's collectives, by rank", loc='left')
    time.legend(fontsize=8)
    bars = ranks.bar(range(len(waits(records))), 1e3 * waits(records))
    if slow is not None:
        bars[slow].set_color('#c2410c')
    ranks.set(xlabel='rank', ylabel='milliseconds')
    ranks.set_title('Median of each rank', loc='left')
    for axis in (time, ranks):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    return figure


FIGURES = {
    'between_share': draw_share,
    'drift': draw_drift,
    'collectives': draw_collectives,
}


def what_stands_out(records: list[Record]) -> Table:
    """Tabulate findings, the layers that stand out, and the slow rank."""
    first, last = records[0].iter, records[-1].iter
    title = f'{len(records)} looks, iterations {first} to {last}'
    table = Table('what', 'where', 'how much', title=title)
    times: Counter[str] = Counter()
    messages = {}
    for record in records:
        for found in record.findings:
            name = f'{found.level}: {found.check}'
            times[name] += 1
            messages[name] = found.message
    for name in sorted(times):
        table.add_row(name, messages[name], f'{times[name]} times')
    for name, share in largest(records, 'between_share')[:TOP]:
        table.add_row('variance between ranks', name, f'{share:.1%}')
    for name, drift in largest(records[-RECENT:], 'mean_drift')[:TOP]:
        table.add_row('drift of late', name, f'{drift:.3g}')
    spent = 1e3 * waits(records)
    if (spent > 0).any():
        slow = slow_rank(records)
        where = 'all ranks alike' if slow is None else f'wait for rank {slow}'
        ends = f'{np.nanmin(spent):.3g} to {np.nanmax(spent):.3g} ms'
        table.add_row('collectives', where, ends)
    return table


def main(argv: Sequence[str] | None = None) -> None:
    """Draw a work dir's figures into a folder, and tell."""
    args = work_dir_parser(__doc__, 'bn_stats').parse_args(argv)
    records = read_records(args.work_dir)
    out = args.out or args.work_dir / 'bn_stats'
    for name, draw in FIGURES.items():
        save(draw(records), out / f'{name}.png')
    Console().print(what_stands_out(records))
    print(f'wrote {", ".join(FIGURES)} to {out}')


if __name__ == '__main__':
    run_tool(main)
