# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the figures have in common."""

from __future__ import annotations

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, GREY, SIGNAL = '#1f2937', '#9ca3af', '#c2410c'
BLUE, PALE = '#1d4ed8', '#bfdbfe'


def over_rows(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Smallest, median and largest number of each column, NaN without any."""
    columns = [column[~np.isnan(column)] for column in values.T]
    return tuple(
        np.array([how(c) if c.size else np.nan for c in columns])
        for how in (np.min, np.median, np.max)
    )


def show_iterations(axis: Axes, iterations: list[int]) -> None:
    """Label the x axis."""
    axis.set_xlabel('iteration')
    if len(iterations) < 3:
        axis.set_xticks(iterations)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def marker(iterations: list[int]) -> str | None:
    """How points are drawn: a line needs some to be seen."""
    return 'o' if len(iterations) < 3 else None


def draw_message(text: str) -> Figure:
    """A figure that says why there is none."""
    figure, axis = plt.subplots(figsize=(10, 1.5), layout='constrained')
    axis.set_axis_off()
    say(axis, text)
    return figure


def say(axis: Axes, text: str) -> None:
    """Write a message across the axes."""
    place = dict(ha='center', va='center', transform=axis.transAxes)
    axis.text(0.5, 0.5, text, color=INK, **place)
