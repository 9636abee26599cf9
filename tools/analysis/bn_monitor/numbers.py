# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Records of BNStatsMonitorHook as arrays, and what stands out in them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from mmdet_megdet.monitor import Record


def forward_order(records: list[Record]) -> list[str]:
    """Return all layers' names, each once, in the order of the forward pass.

    A layer that appears later stands behind the one before it in its record.
    """
    order: list[str] = []
    for record in records:
        place = 0
        for layer in record.layers:
            if layer.name not in order:
                order.insert(place, layer.name)
            place = order.index(layer.name) + 1
    return order


def by_layer(records: list[Record], field: str) -> np.ndarray:
    """Return one of the layers' numbers, over all records.

    Args:
        records (list[Record]): Records.
        field (str): The name of a number of a layer.

    Returns:
        np.ndarray: Layers in forward order x records, float64; NaN where
        there is no number.
    """
    rows = {name: row for row, name in enumerate(forward_order(records))}
    values = np.full((len(rows), len(records)), np.nan)
    for column, record in enumerate(records):
        for layer in record.layers:
            # None becomes NaN.
            values[rows[layer.name], column] = getattr(layer, field)
    return values


def by_rank(records: list[Record], field: str) -> np.ndarray:
    """Return one of the ranks' times, over all records.

    Args:
        records (list[Record]): Records.
        field (str): 'iteration' or 'collectives'.

    Returns:
        np.ndarray: Seconds, ranks x records, float64; NaN where there is no
        number or no such rank.
    """
    ranks = max(record.world_size for record in records)
    values = np.full((ranks, len(records)), np.nan)
    for column, record in enumerate(records):
        values[: record.world_size, column] = getattr(record.seconds, field)
    return values


def over(
    how: Callable[..., np.ndarray], values: np.ndarray, axis: int
) -> np.ndarray:
    """Apply ``np.nanmedian`` or the like; NaN where there are only NaNs."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)
        return how(values, axis=axis)


def largest(
    records: list[Record],
    field: str,
    number: int | None = None,
    recent: int | None = None,
) -> list[tuple[str, float]]:
    """Return the layers with the largest median.

    Args:
        records (list[Record]): Records.
        field (str): The name of a number of a layer.
        number (int, optional): How many layers, at most. Defaults to None:
            all.
        recent (int, optional): How many of the last records count. Defaults
            to None: all.

    Returns:
        list[tuple[str, float]]: Names and medians, the largest first; layers
        without a number are left out.
    """
    records = records[-recent:] if recent else records
    values = over(np.nanmedian, by_layer(records, field), 1)
    pairs = zip(forward_order(records), values.tolist(), strict=True)
    known = [pair for pair in pairs if not np.isnan(pair[1])]
    return sorted(known, key=lambda pair: -pair[1])[:number]


def of_this_size(records: list[Record]) -> list[Record]:
    """Return the last records that have the same number of ranks.

    A training may be resumed on other hardware, where rank 3 is another GPU.
    """
    size = records[-1].world_size
    others = [i for i, r in enumerate(records) if r.world_size != size]
    return records[others[-1] + 1 :] if others else records


def waits(records: list[Record]) -> np.ndarray:
    """Return each rank's median time in collectives, in seconds, or NaN."""
    values = by_rank(of_this_size(records), 'collectives')
    return over(np.nanmedian, values, 1)


def slow_rank(records: list[Record]) -> int | None:
    """Find the rank for which the others wait: it arrives last, waits least.

    As BNStatsMonitorHook judges it: the others wait twice as long or longer.

    Returns:
        int | None: The rank; None where none is much slower.
    """
    times = waits(records)
    if np.count_nonzero(times > 0) < 2:
        return None
    least = int(np.nanargmin(times))
    others = np.nanmedian(np.delete(times, least))
    return least if others > 2 * times[least] else None


def percent(share: float | None) -> str:
    """Return a share in percent, to two digits or more."""
    if share is None or np.isnan(share):
        return '-'
    return (
        f'{100 * share:.0f} %' if share >= 0.0995 else f'{100 * share:.2g} %'
    )
