# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What syncing costs: the time in the collectives."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .axes import GREY, INK, SIGNAL, marker, over_rows, show_iterations
from .records import Record, by_rank
from .summary import medians, of_this_size, percent, slow_rank, waits

TITLE = 'What syncing costs'
HOW_TO_READ = (
    "Time in BatchNorm's collectives, waiting for other ranks included, "
    'beside that of the whole iteration. The rank that waits least arrives '
    'last: where it stands far below the others, they wait for it.'
)
# As many ranks are told apart by colour; more are drawn in grey. C1 and C3
# are too close to the colour of the slow one.
COLOURS = ('C0', 'C2', 'C4', 'C5', 'C6', 'C7', 'C8', 'C9')


def explain(records: list[Record]) -> str:
    """Say in a sentence or two what the figure shows."""
    records = of_this_size(records)
    times = waits(records)
    if not (times > 0).any():
        return 'No layer communicated, so syncing cost nothing.'
    shares = medians(
        by_rank(records, 'collectives') / by_rank(records, 'iteration')
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


def draw(records: list[Record]) -> Figure:
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
    iterations = [record.iter for record in records]
    whole = by_rank(records, 'iteration')
    waiting = by_rank(records, 'collectives')
    slow = slow_rank(records)
    dots = marker(iterations)

    for rank, seconds in enumerate(waiting):
        style = _rank_style(rank, len(waiting), slow)
        for name, values in (
            ('time', 1e3 * seconds),
            ('share', seconds / whole[rank]),
        ):
            axes[name].plot(iterations, values, marker=dots, **style)
    axes['time'].plot(
        iterations,
        1e3 * over_rows(whole)[2],
        color=INK,
        lw=2,
        marker=dots,
        label='iteration',
    )
    axes['time'].set_title(
        "Time in BatchNorm's collectives and in the whole iteration",
        loc='left',
    )
    axes['time'].set_ylabel('milliseconds')
    figure.legend(
        *axes['time'].get_legend_handles_labels(),
        loc='outside lower center',
        ncols=5,
        fontsize=8,
    )
    axes['share'].set_title('Share of the iteration', loc='left')
    axes['share'].yaxis.set_major_formatter(PercentFormatter(1))
    for name in ('time', 'share'):
        show_iterations(axes[name], iterations)
        axes[name].set_ylim(bottom=0)
        axes[name].grid(alpha=0.3)
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
        return dict(
            color=SIGNAL, lw=2, zorder=3, label=f'rank {rank}: waits least'
        )
    if ranks > len(COLOURS):
        label = 'other ranks' if rank == (slow == 0) else None
        return dict(color=GREY, lw=0.6, label=label)
    return dict(color=COLOURS[rank], lw=1, label=f'rank {rank}')
