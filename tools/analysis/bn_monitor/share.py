# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What syncing buys: the share of the variance between the ranks."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .axes import BLUE, draw_message
from .records import Record, by_layer, forward_order
from .summary import largest, medians, percent

TITLE = 'What syncing buys'
HOW_TO_READ = (
    'Each row is a layer, from the input at the top to the output; each '
    "column is a monitored iteration. The darker, the more the ranks' means "
    'differ, which BatchNorm on one GPU does not see; pale rows gain next to '
    'nothing from syncing.'
)
# Rows of so many inches; up to MAX_LABELS each has its name.
ROW_HEIGHT, MIN_ROWS, MAX_LABELS = 0.165, 6, 160
AS_PERCENT = FuncFormatter(lambda share, _: f'{100 * share:g}%')


def explain(records: list[Record]) -> str:
    """Say in a sentence or two what the figure shows."""
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


def draw(records: list[Record]) -> Figure:
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
        return draw_message('No layer was called on more than one rank.')
    rows = ROW_HEIGHT * min(max(len(names), MIN_ROWS), MAX_LABELS)
    figure = plt.figure(figsize=(10, rows + 1.3), layout='constrained')
    grid = figure.add_gridspec(
        2, 2, width_ratios=(5, 1), height_ratios=(rows, 0.13)
    )
    heat = figure.add_subplot(grid[0, 0])
    typical = figure.add_subplot(grid[0, 1], sharey=heat)
    image = _draw_heat_map(heat, records)
    _draw_medians(typical, medians(values))
    scale = figure.colorbar(
        image,
        cax=figure.add_subplot(grid[1, :]),
        orientation='horizontal',
        format=AS_PERCENT,
        ticks=(0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1),
    )
    scale.set_label('share (hatched: nothing to compare)')
    return figure


def _draw_heat_map(axis: Axes, records: list[Record]) -> AxesImage:
    names = forward_order(records)
    iterations = [record.iter for record in records]
    image = axis.imshow(
        np.ma.masked_invalid(by_layer(records, 'between_share')),
        aspect='auto',
        cmap='YlGnBu',
        # The root spreads the small shares, which most layers have.
        norm=PowerNorm(0.5, 0, 1),
    )
    axis.patch.set(facecolor='#f3f4f6', edgecolor='#d1d5db', hatch='////')
    step = math.ceil(len(names) / MAX_LABELS)
    axis.set_yticks(range(0, len(names), step), names[::step], fontsize=8)
    axis.tick_params(axis='y', length=0)
    columns = range(0, len(iterations), math.ceil(len(iterations) / 8))
    axis.set_xticks(columns, [iterations[column] for column in columns])
    axis.set_xlabel('iteration (a column is a monitored one)')
    axis.set_title(
        'Share of the variance that lies between the ranks', loc='left'
    )
    return image


def _draw_medians(axis: Axes, values: np.ndarray) -> None:
    axis.barh(range(len(values)), values, height=0.75, color=BLUE)
    axis.set_title('median', loc='left')
    axis.tick_params(axis='y', left=False, labelleft=False)
    axis.xaxis.set_major_locator(MaxNLocator(3))
    axis.xaxis.set_major_formatter(AS_PERCENT)
    axis.set_xlim(left=0)
    axis.spines[['top', 'right']].set_visible(False)
    axis.grid(axis='x', alpha=0.3)
