# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Return an iteration as rows, as a few numbers, and as a line of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ..text import count
from .exchange import Numbers, is_foreign_sync
from .record import LEVELS, Finding, LayerRecord, Record, Seconds


def layer_state(
    numbers: Numbers, layer: int
) -> Literal['synced', 'alone', 'eval', 'uncalled']:
    """Return a layer's state: synced, alone, eval or uncalled."""
    rows = numbers.layers[:, layer]
    if not rows['calls'].any():
        return 'uncalled'
    if not rows['training'].all():
        return 'eval'
    foreign = is_foreign_sync(numbers.kinds[layer]) and len(rows) > 1
    return 'synced' if foreign or rows['communicates'].any() else 'alone'


def forward_order(numbers: Numbers) -> list[int]:
    """Return the layers as rank 0 first calls them.

    Then those that other ranks alone call, then, in the model's order, those
    that nobody calls.
    """
    first = numbers.layers['first_call']
    # Infinity stands for 'not called', and stays behind all calls.
    first = np.where(first < 0, np.inf, first)
    return np.lexsort((first.min(0), first[0])).tolist()


def between_ranks(numbers: Numbers, layer: int) -> float | None:
    """Return the share of a layer's variance between the ranks' means.

    From 0 to 1; None where there is nothing to compare. Over the ranks of a
    BN group, or over all ranks where the layer does not synchronise: in the
    model's first layer that tells what synchronising would change. An average
    over channels; of several groups that which differs most.
    """
    shares = []
    for group in numbers.bn_groups(layer):
        counts = numbers.layers['count'][group, layer]
        if len(group) < 2 or not counts.any():
            continue
        weights = counts / counts.sum()
        means = numbers.layers['mean'][group, layer]
        variances = numbers.layers['var'][group, layer]
        with np.errstate(all='ignore'):
            between = weights @ np.square(means - weights @ means)
            whole = between + weights @ variances
            seen = np.isfinite(whole) & (whole > 0)
            if seen.any():
                shares.append((between[seen] / whole[seen]).mean())
    return _largest(shares)


def layer_rows(numbers: Numbers) -> list[LayerRecord]:
    """Return a row for each layer, in forward order."""
    rows = []
    for layer in forward_order(numbers):
        own = numbers.layers[:, layer]
        seen = own[own['group_count'] > 0]
        rows.append(
            LayerRecord(
                name=numbers.names[layer],
                type=numbers.kinds[layer],
                state=layer_state(numbers, layer),
                ranks_per_group=int(own['ranks'].max()),
                calls=int(own['calls'].max()),
                count=int(own['group_count'].max()),
                between_share=between_ranks(numbers, layer),
                mean_drift=_largest(seen['mean_drift']),
                dead_channels=int(seen['dead'].min()) if len(seen) else 0,
                running_var_max=_largest(own['running_var_max']),
            )
        )
    return rows


def _largest(values: list[float] | np.ndarray) -> float | None:
    values = [float(value) for value in values if not np.isnan(value)]
    return max(values) if values else None


def make_record(
    numbers: Numbers, findings: list[Finding], iteration: int, epoch: int
) -> Record:
    """Return the record of a look; iteration and epoch are from 1."""
    spent = numbers.ranks['seconds'], numbers.ranks['collectives']
    return Record(
        iteration,
        epoch,
        numbers.world_size,
        numbers.images_per_gpu,
        Seconds(*(times.tolist() for times in spent)),
        layer_rows(numbers),
        findings,
    )


def aggregates(record: Record) -> dict[str, float]:
    """Return a few numbers for the log line; what is not known is left out."""
    collectives = np.array(record.seconds.collectives, float)
    shares = collectives / np.array(record.seconds.iteration, float)
    several = record.world_size > 1
    values = dict(
        between_share=_mean([row.between_share for row in record.layers]),
        mean_drift=_mean([row.mean_drift for row in record.layers]),
        collective_share=float(shares.max()) if several else None,
        findings=len(record.findings),
    )
    return {k: v for k, v in values.items() if v is not None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summary(record: Record) -> str:
    """Return the log's line: which layers synchronise, and the verdict."""
    states = Counter(
        f'synced over {count(row.ranks_per_group, "rank")}'
        if row.state == 'synced'
        else row.state
        for row in record.layers
    )
    layers = ', '.join(f'{number} {state}' for state, number in states.items())
    levels = Counter(finding.level for finding in record.findings)
    verdict = ', '.join(
        count(levels[level], level) for level in LEVELS if levels[level]
    )
    return (
        f'iteration {record.iter}: {len(record.layers)} BatchNorm layers, '
        f'{layers}; verdict: {verdict or "sound"}.'
    )
