# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The three figures of BNStatsMonitorHook's records, and what they show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from mmdet_megdet.monitor import Record

from .numbers import (
    by_layer,
    by_rank,
    forward_order,
    largest,
    of_this_size,
    over,
    percent,
    slow_rank,
    waits,
)

INK, GREY, SIGNAL = '#1f2937', '#9ca3af', '#c2410c'
BLUE, PALE = '#1d4ed8', '#bfdbfe'
# Rows of so many inches; up to MAX_LABELS each has its name.
ROW_HEIGHT, MIN_ROWS, MAX_LABELS = 0.165, 6, 160
AS_PERCENT = FuncFormatter(lambda share, _: f'{100 * share:g}%')
# One batch alone is noisy: the last few records tell the layers that stand
# out in drift, each in a colour of its own.
RECENT = 10
WORST = (SIGNAL, '#7c3aed', '#0f766e')
# As many ranks are told apart by colour; more are drawn in grey. C1 and C3
# are too close to the colour of the slow one.
RANKS = ('C0', 'C2', 'C4', 'C5', 'C6', 'C7', 'C8', 'C9')


def explain_share(records: list[Record]) -> str:
    """Say what syncing buys."""
    shares = largest(records, 'between_share')
    if not shares:
        return (
            'No layer was called on more than one rank, so there is nothing '
            'to compare.'
        )
    (name, share), middle = shares[0], np.median([s for _, s in shares])
    states = {layer.name: layer.state for r in records for layer in r.layers}
    does = 'does' if states[name] == 'synced' else 'would do'
    return (
        f'Syncing {does} most for {name}: {percent(share)} of its variance '
        'lies between the ranks, where a GPU alone does not see it. The '
        f'median layer has {percent(middle)}.'
    )


def draw_share(records: list[Record]) -> Figure:
    """Draw the between-rank share of the variance as a heat map.

    Args:
        records (list[Record]): Records; one is a column.

    Returns:
        Figure: The heat map, layers in forward order from the top, and their
        medians beside it. The colours are the same for every run.
    """
    names = forward_order(records)
    values = by_layer(records, 'between_share')
    if np.isnan(values).all():
        figure, axis = plt.subplots(figsize=(10, 1.5), layout='constrained')
        axis.set_axis_off()
        _say(axis, 'No layer was called on more than one rank.')
        return figure
    rows = ROW_HEIGHT * min(max(len(names), MIN_ROWS), MAX_LABELS)
    figure = plt.figure(figsize=(10, rows + 1.3), layout='constrained')
    grid = figure.add_gridspec(
        2, 2, width_ratios=(5, 1), height_ratios=(rows, 0.13)
    )
    heat = figure.add_subplot(grid[0, 0])
    image = heat.imshow(
        np.ma.masked_invalid(values),
        aspect='auto',
        cmap='YlGnBu',
        # The root spreads the small shares, which most layers have.
        norm=PowerNorm(0.5, 0, 1),
    )
    heat.patch.set(facecolor='#f3f4f6', edgecolor='#d1d5db', hatch='////')
    step = math.ceil(len(names) / MAX_LABELS)
    heat.set_yticks(range(0, len(names), step), names[::step], fontsize=8)
    heat.tick_params(axis='y', length=0)
    columns = range(0, len(records), math.ceil(len(records) / 8))
    heat.set_xticks(columns, [records[column].iter for column in columns])
    heat.set_xlabel('iteration (a column is a monitored one)')
    heat.set_title(
        'Share of the variance that lies between the ranks', loc='left'
    )
    typical = figure.add_subplot(grid[0, 1], sharey=heat)
    medians = over(np.nanmedian, values, 1)
    typical.barh(range(len(medians)), medians, height=0.75, color=BLUE)
    typical.set_title('median', loc='left')
    typical.tick_params(axis='y', left=False, labelleft=False)
    typical.xaxis.set_major_locator(MaxNLocator(3))
    typical.xaxis.set_major_formatter(AS_PERCENT)
    typical.set_xlim(left=0)
    typical.spines[['top', 'right']].set_visible(False)
    typical.grid(axis='x', alpha=0.3)
    figure.colorbar(
        image,
        cax=figure.add_subplot(grid[1, :]),
        orientation='horizontal',
        format=AS_PERCENT,
        ticks=(0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1),
        label='share (hatched: nothing to compare)',
    )
    return figure


def explain_drift(records: list[Record]) -> str:
    """Say whether the running statistics keep up."""
    parts = []
    for field, what in (('mean_drift', 'mean'), ('var_drift', 'variance')):
        drifts = largest(records, field, recent=RECENT)
        if drifts:
            (name, value), middle = drifts[0], [v for _, v in drifts]
            parts.append(
                f'for the {what} {name} stands highest, at {value:.3g}, and '
                f'the median layer at {np.median(middle):.3g}'
            )
    if not parts:
        return 'No layer has running statistics to compare.'
    return f'Of late, {"; ".join(parts)}.'


def draw_drift(records: list[Record]) -> Figure:
    """Draw how far the batch statistics are from the running ones.

    Args:
        records (list[Record]): Records.

    Returns:
        Figure: Median and range over the layers for mean and variance, and
        the layers with the largest drift in the last records.
    """
    figure, axes = plt.subplots(
        2, 1, sharex=True, figsize=(10, 6.5), layout='constrained'
    )
    _draw_drift(axes[0], records, 'mean_drift')
    axes[0].set_ylabel('mean: batch minus running,\nin running std deviations')
    axes[0].set_title(
        'Drift: batch statistics against running statistics', loc='left'
    )
    _draw_drift(axes[1], records, 'var_drift')
    axes[1].set_ylabel('variance: log of\nbatch over running')
    _show_iterations(axes[1], records)
    return figure


def _draw_drift(axis: Axes, records: list[Record], field: str) -> None:
    values = by_layer(records, field)
    known = values[~np.isnan(values)]
    axis.grid(alpha=0.3)
    if not known.size:
        _say(axis, 'no layer has running statistics to compare')
        return
    iterations = [record.iter for record in records]
    low, middle, high = (
        over(how, values, 0) for how in (np.nanmin, np.nanmedian, np.nanmax)
    )
    axis.fill_between(
        iterations, low, high, color=PALE, label='all layers', lw=0
    )
    if len(records) == 1:  # an area without width
        axis.vlines(iterations, low, high, color=PALE, lw=8)
    dots = _marker(records)
    style = dict(color=BLUE, lw=2, label='median', marker=dots)
    axis.plot(iterations, middle, **style)
    names = forward_order(records)
    worst = largest(records, field, len(WORST), RECENT)
    for (name, value), colour in zip(worst, WORST, strict=False):
        axis.plot(
            iterations,
            values[names.index(name)],
            color=colour,
            lw=1,
            marker=dots,
            label=f'{name}: {value:.3g}',
        )
    if known.min() > 0 and known.max() > 30 * np.median(known):
        axis.set_yscale('log')
    else:
        axis.set_ylim(0, 1.1 * known.max() or 1)
    axis.legend(
        loc='center left',
        bbox_to_anchor=(1, 0.5),
        fontsize=8,
        title=f'largest median\nof the last {min(RECENT, len(records))}',
        title_fontsize=8,
    )


def explain_collectives(records: list[Record]) -> str:
    """Say what syncing costs."""
    records = of_this_size(records)
    times = waits(records)
    if not (times > 0).any():
        return 'No layer communicated, so syncing cost nothing.'
    shares = over(
        np.nanmedian,
        by_rank(records, 'collectives') / by_rank(records, 'iteration'),
        1,
    )
    low, high = (percent(how(shares)) for how in (np.nanmin, np.nanmax))
    text = f'Collectives take {low} of the iteration'
    if low != high:
        text += f' on one rank, up to {high} on another'
    slow = slow_rank(records)
    if slow is None:
        alone = len(times) == 1
        end = '.' if alone else '; no rank is much slower than the others.'
        return text + end
    others = np.nanmedian(np.delete(times, slow))
    return (
        f'{text}. Rank {slow} waits least, {1e3 * times[slow]:.3g} ms in a '
        f'median iteration; the others wait {1e3 * others:.3g} ms, for it.'
    )


def draw_collectives(records: list[Record]) -> Figure:
    """Draw the time in collectives against the iteration time.

    Args:
        records (list[Record]): Records.

    Returns:
        Figure: Times over the iterations, the collectives' share of them,
        and the medians of the ranks; the rank that waits least stands out.
    """
    figure, axes = plt.subplot_mosaic(
        [['time', 'time'], ['share', 'rank']],
        width_ratios=(2, 1),
        figsize=(10, 6.5),
        layout='constrained',
    )
    time, share = axes['time'], axes['share']
    iterations = [record.iter for record in records]
    whole = by_rank(records, 'iteration')
    waiting = by_rank(records, 'collectives')
    slow, dots = slow_rank(records), _marker(records)
    for rank, seconds in enumerate(waiting):
        style = _rank_style(rank, len(waiting), slow)
        time.plot(iterations, 1e3 * seconds, marker=dots, **style)
        share.plot(iterations, seconds / whole[rank], marker=dots, **style)
    slowest = 1e3 * over(np.nanmax, whole, 0)
    style = dict(color=INK, lw=2, marker=dots, label='iteration')
    time.plot(iterations, slowest, **style)
    time.set_title(
        "Time in BatchNorm's collectives and in the whole iteration",
        loc='left',
    )
    time.set_ylabel('milliseconds')
    figure.legend(
        *time.get_legend_handles_labels(),
        loc='outside lower center',
        ncols=5,
        fontsize=8,
    )
    share.set_title('Share of the iteration', loc='left')
    share.yaxis.set_major_formatter(PercentFormatter(1))
    for axis in (time, share):
        _show_iterations(axis, records)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    _draw_ranks(axes['rank'], 1e3 * waits(records), slow)
    return figure


def _draw_ranks(axis: Axes, times: np.ndarray, slow: int | None) -> None:
    bars = axis.bar(range(len(times)), times, color=GREY)
    axis.set_title('Median of each rank', loc='left')
    axis.set_xlabel('rank')
    axis.set_ylabel('milliseconds in collectives')
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    if slow is not None:
        bars[slow].set_color(SIGNAL)
        labels = [''] * len(times)
        labels[slow] = 'waits least'
        axis.bar_label(bars, labels, color=SIGNAL, fontsize=8, padding=2)
        axis.margins(y=0.15)


def _rank_style(rank: int, ranks: int, slow: int | None) -> dict:
    if rank == slow:
        label = f'rank {rank}: waits least'
        return dict(color=SIGNAL, lw=2, zorder=3, label=label)
    if ranks > len(RANKS):
        label = 'other ranks' if rank == (slow == 0) else None
        return dict(color=GREY, lw=0.6, label=label)
    return dict(color=RANKS[rank], lw=1, label=f'rank {rank}')


def _show_iterations(axis: Axes, records: list[Record]) -> None:
    axis.set_xlabel('iteration')
    if len(records) < 3:
        axis.set_xticks([record.iter for record in records])
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _marker(records: list[Record]) -> str | None:
    # A line needs some points to be seen.
    return 'o' if len(records) < 3 else None


def _say(axis: Axes, text: str) -> None:
    place = dict(ha='center', va='center', transform=axis.transAxes)
    axis.text(0.5, 0.5, text, color=INK, **place)


class Section(NamedTuple):
    """A figure, and the words around it."""

    title: str
    how_to_read: str
    explain: Callable[[list[Record]], str]
    draw: Callable[[list[Record]], Figure]


# In the order in which the report shows them.
SECTIONS = {
    'between_share': Section(
        'What syncing buys',
        'Each row is a layer, from the input at the top to the output; each '
        "column is a monitored iteration. The darker, the more the ranks' "
        'means differ, which BatchNorm on one GPU does not see; pale rows '
        'gain next to nothing from syncing.',
        explain_share,
        draw_share,
    ),
    'drift': Section(
        'Do the running statistics keep up?',
        "How far a batch's statistics are from the running ones, by which "
        'evaluation goes. The curves should fall while the running statistics '
        'settle, then stay level; where one keeps rising, the layer is '
        'evaluated by statistics that it no longer has.',
        explain_drift,
        draw_drift,
    ),
    'collectives': Section(
        'What syncing costs',
        "Time in BatchNorm's collectives, waiting for other ranks included, "
        'beside that of the whole iteration. The rank that waits least '
        'arrives last: where it stands far below the others, they wait for '
        'it.',
        explain_collectives,
        draw_collectives,
    ),
}
