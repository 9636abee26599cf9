# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What stands out in the records of BNStatsMonitorHook."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .records import LEVELS, Record, by_layer, by_rank, forward_order


class Seen(NamedTuple):
    """A check's findings, over all records.

    Attributes:
        check (str): Name of the check.
        level (str): 'error', 'warning' or 'info'.
        iterations (list[int]): The iterations that have it.
        now (bool): Whether the last record has it.
        findings (list[Finding]): Those of the last record that has it.
    """

    check: str
    level: str
    iterations: list[int]
    now: bool
    findings: list


def seen_findings(records: list[Record]) -> list[Seen]:
    """The findings by check, those of the last record and the worst first."""
    found: dict[tuple[str, str], dict[int, list]] = {}
    for record in records:
        for finding in record.findings:
            key = (finding.check, finding.level)
            found.setdefault(key, {}).setdefault(record.iter, []).append(
                finding
            )
    seen = [
        Seen(
            check,
            level,
            list(by_iteration),
            records[-1].iter in by_iteration,
            by_iteration[max(by_iteration)],
        )
        for (check, level), by_iteration in found.items()
    ]
    return sorted(seen, key=lambda s: (not s.now, LEVELS.index(s.level)))


def medians(values: np.ndarray) -> np.ndarray:
    """Median of each row over its numbers; NaN where it has none."""
    known = [row[~np.isnan(row)] for row in values]
    return np.array([np.median(row) if row.size else np.nan for row in known])


def largest(
    records: list[Record],
    field: str,
    number: int | None = None,
    recent: int | None = None,
) -> list[tuple[str, float]]:
    """The layers with the largest median.

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
    values = medians(by_layer(records, field))
    pairs = zip(forward_order(records), values.tolist(), strict=True)
    known = [pair for pair in pairs if not np.isnan(pair[1])]
    return sorted(known, key=lambda pair: -pair[1])[:number]


def of_this_size(records: list[Record]) -> list[Record]:
    """The last records that have the same number of ranks.

    A training may be resumed on other hardware, where rank 3 is another GPU.
    """
    number = 0
    for record in reversed(records):
        if record.world_size != records[-1].world_size:
            break
        number += 1
    return records[-number:]


def waits(records: list[Record]) -> np.ndarray:
    """Each rank's median time in collectives, in seconds, or NaN."""
    return medians(by_rank(of_this_size(records), 'collectives'))


def slow_rank(records: list[Record]) -> int | None:
    """The rank for which the others wait: it arrives last and waits least.

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
    """A share in percent, to two digits or more."""
    if share is None or np.isnan(share):
        return '-'
    return (
        f'{100 * share:.0f} %' if share >= 0.0995 else f'{100 * share:.2g} %'
    )
