# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An iteration as an object of the record, a few numbers, a line of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .finding import Finding
from .numbers import Numbers
from .table import collective_seconds, plan


def content(
    numbers: Numbers,
    rows: list[dict[str, Any]],
    findings: list[Finding],
    accumulative_counts: int,
) -> dict[str, Any]:
    """What ``bn_stats.jsonl`` says of an iteration, besides which it is.

    Args:
        numbers (Numbers): What was gathered.
        rows (list[dict]): The layers, by :func:`~.table.layer_rows`.
        findings (list[Finding]): By :func:`~.verdicts.judge`.
        accumulative_counts (int): Iterations of an optimizer update.
    """
    return dict(
        world_size=numbers.world_size,
        images_per_gpu=numbers.images_per_gpu,
        seconds=dict(
            iteration=numbers.ranks['seconds'].tolist(),
            collectives=collective_seconds(numbers).tolist(),
        ),
        plan=plan(numbers, accumulative_counts),
        layers=rows,
        findings=[finding._asdict() for finding in findings],
    )


def aggregates(
    numbers: Numbers, rows: list[dict[str, Any]], findings: list[Finding]
) -> dict[str, float]:
    """A few numbers for the log line; what is not known is left out."""
    shares = collective_seconds(numbers) / numbers.ranks['seconds']
    several = numbers.world_size > 1
    values = dict(
        between_share=_mean([row['between_share'] for row in rows]),
        mean_drift=_mean([row['mean_drift'] for row in rows]),
        collective_share=float(shares.max()) if several else None,
        findings=sum(finding.level != 'info' for finding in findings),
    )
    return {k: v for k, v in values.items() if v is not None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summary(
    iteration: int, rows: list[dict[str, Any]], findings: list[Finding]
) -> str:
    states = Counter(row['state'] for row in rows)
    groups = Counter(
        row['ranks_per_group'] for row in rows if row['state'] == 'synced'
    )
    text = (
        f'iteration {iteration}: {len(rows)} BatchNorm layers, '
        + ', '.join(f'{number} {state}' for state, number in states.items())
    )
    if groups:
        text += '; statistics over ' + ' and '.join(
            f'{ranks} ranks in {number}' for ranks, number in groups.items()
        )
    levels = Counter(finding.level for finding in findings)
    verdict = ', '.join(
        f'{levels[level]} {level}(s)'
        for level in ('error', 'warning')
        if levels[level]
    )
    return f'{text}; verdict: {verdict or "sound"}.'
