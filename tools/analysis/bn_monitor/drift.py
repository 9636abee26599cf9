# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whether the running statistics keep up with the batches'."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from .axes import BLUE, PALE, marker, over_rows, say, show_iterations
from .records import Record, by_layer, forward_order
from .summary import largest

TITLE = 'Do the running statistics keep up?'
HOW_TO_READ = (
    "How far a batch's statistics are from the running ones, by which "
    'evaluation goes. The curves should fall while the running statistics '
    'settle, then stay level; where one keeps rising, the layer is evaluated '
    'by statistics that it no longer has.'
)
# One batch alone is noisy: the last few records tell the layers that stand
# out.
RECENT = 10
NAMED = ('#c2410c', '#7c3aed', '#0f766e')  # colours of those


def explain(records: list[Record]) -> str:
    """Say in a sentence or two what the figure shows."""
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


def draw(records: list[Record]) -> Figure:
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
    names = forward_order(records)
    iterations = [record.iter for record in records]
    dots = marker(iterations)
    recent = min(RECENT, len(records))
    for axis, field, label in zip(
        axes,
        ('mean_drift', 'var_drift'),
        (
            'mean: batch minus running,\nin running std deviations',
            'variance: log of\nbatch over running',
        ),
        strict=True,
    ):
        values = by_layer(records, field)
        known = values[~np.isnan(values)]
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        if not known.size:
            say(axis, 'no layer has running statistics to compare')
            continue
        low, middle, high = over_rows(values)
        axis.fill_between(
            iterations, low, high, color=PALE, label='all layers', lw=0
        )
        if len(records) == 1:  # an area without width
            axis.vlines(iterations, low, high, color=PALE, lw=8)
        axis.plot(
            iterations,
            middle,
            color=BLUE,
            lw=2,
            label='median',
            marker=dots,
        )
        worst = largest(records, field, len(NAMED), RECENT)
        for (name, value), colour in zip(worst, NAMED, strict=False):
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
            title=f'largest median\nof the last {recent}',
            title_fontsize=8,
        )
    axes[0].set_title(
        'Drift: batch statistics against running statistics', loc='left'
    )
    show_iterations(axes[1], iterations)
    return figure
