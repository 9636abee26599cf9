# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An iteration as a record, as a few numbers, and as a line of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from .exchange import Numbers, is_foreign_sync
from .record import LEVELS, Finding, LayerRecord, Plan, Record, Seconds


def layer_state(numbers: Numbers, layer: int) -> str:
    """Return what a layer did, as :class:`~.record.LayerRecord` has it."""
    rows = numbers.layers[:, layer]
    if not rows['calls'].any():
        return 'uncalled'
    if not rows['training'].all():
        return 'eval'
    foreign = is_foreign_sync(numbers.kinds[layer])
    if rows['communicates'].any() or (foreign and (rows['ranks'] > 1).any()):
        return 'synced'
    return 'alone'


def forward_order(numbers: Numbers) -> list[int]:
    """Return the layers as rank 0 first calls them.

    Then those that other ranks alone call, then, in the model's order, those
    that nobody calls.
    """
    first = numbers.layers['first_call']
    # Infinity stands for 'not called', and stays behind all calls.
    first = np.where(first < 0, np.inf, first)
    return np.lexsort((first.min(0), first[0])).tolist()


def between_ranks(
    numbers: Numbers, layer: int
) -> tuple[float | None, float | None]:
    """Return how a layer's batch differs from rank to rank.

    Of the first call, over the ranks of a BN group, or over all ranks where
    the layer does not synchronise: in the model's first layer that tells what
    synchronising would change. Averages over at most
    :data:`~.exchange.MAX_CHANNELS` channels, of those with a variance; of
    several groups the one that differs most.

    Returns:
        tuple: The share of the variance that lies between the ranks' means,
        0 to 1; and how far the local variances are from the group's: the
        rms of their ratio minus 1. None where there is nothing to compare.
    """
    shares, spreads = [], []
    for group in numbers.bn_groups(layer):
        counts = numbers.layers['count'][group, layer]
        if len(group) < 2 or not counts.any():
            continue
        weights = counts / counts.sum()
        means, variances = numbers.moments[layer][group].transpose(1, 0, 2)
        with np.errstate(all='ignore'):
            between = weights @ np.square(means - weights @ means)
            whole = between + weights @ variances
            seen = np.isfinite(whole) & (whole > 0)
            if not seen.any():
                continue
            shares.append((between[seen] / whole[seen]).mean())
            ratios = variances[:, seen] / whole[seen]
            spreads.append(np.sqrt((weights @ np.square(ratios - 1)).mean()))
    return _largest(shares), _largest(spreads)


def layer_rows(numbers: Numbers) -> list[LayerRecord]:
    """Return a row for each layer, in forward order."""
    rows = []
    for layer in forward_order(numbers):
        own = numbers.layers[:, layer]
        share, spread = between_ranks(numbers, layer)
        seen = own[own['group_count'] > 0]
        rows.append(
            LayerRecord(
                name=numbers.names[layer],
                type=numbers.kinds[layer],
                state=layer_state(numbers, layer),
                ranks_per_group=int(own['ranks'].max()),
                calls=int(own['calls'].max()),
                count=int(own['group_count'].max()),
                between_share=share,
                var_spread=spread,
                mean_drift=_largest(seen['mean_drift']),
                var_drift=_largest(seen['var_drift']),
                dead_channels=int(seen['dead'].min()) if len(seen) else 0,
                running_var_max=_largest(own['running_var_max']),
                collective_seconds=own['seconds'].tolist(),
            )
        )
    return rows


def _largest(values: list[float] | np.ndarray) -> float | None:
    values = [float(value) for value in values if not np.isnan(value)]
    return max(values) if values else None


def collective_seconds(numbers: Numbers) -> np.ndarray:
    """Return what each rank spent in BatchNorm's collectives, ``(R, )``."""
    return numbers.layers['seconds'].sum(1)


def batch_plan(numbers: Numbers, accumulative_counts: int) -> Plan:
    """Return what the numbers say of the batch."""
    images = numbers.images_per_gpu
    sizes = Counter(
        'all' if size == 0 else str(int(size))
        for size, ours in zip(
            numbers.layers['bn_size'][0], numbers.ours, strict=True
        )
        if ours
    )
    total = images and images * numbers.world_size * accumulative_counts
    return Plan(total, accumulative_counts, dict(sizes))


def record_of(
    numbers: Numbers,
    rows: list[LayerRecord],
    findings: list[Finding],
    iteration: int,
    epoch: int,
    accumulative_counts: int,
) -> Record:
    """Return what ``bn_stats.jsonl`` says of an iteration.

    Args:
        numbers (Numbers): What was gathered.
        rows (list[LayerRecord]): The layers, by :func:`layer_rows`.
        findings (list[Finding]): By :func:`~.checks.judge`.
        iteration (int): Iterations done, this one included.
        epoch (int): Epoch that it belongs to, from 1.
        accumulative_counts (int): Iterations of an optimizer update.
    """
    return Record(
        iter=iteration,
        epoch=epoch,
        world_size=numbers.world_size,
        images_per_gpu=numbers.images_per_gpu,
        seconds=Seconds(
            iteration=numbers.ranks['seconds'].tolist(),
            collectives=collective_seconds(numbers).tolist(),
        ),
        plan=batch_plan(numbers, accumulative_counts),
        layers=rows,
        findings=findings,
    )


def aggregates(
    numbers: Numbers, rows: list[LayerRecord], findings: list[Finding]
) -> dict[str, float]:
    """Return a few numbers for the log line; what is not known is left out."""
    shares = collective_seconds(numbers) / numbers.ranks['seconds']
    several = numbers.world_size > 1
    values = dict(
        between_share=_mean([row.between_share for row in rows]),
        mean_drift=_mean([row.mean_drift for row in rows]),
        collective_share=float(shares.max()) if several else None,
        findings=sum(finding.level != 'info' for finding in findings),
    )
    return {k: v for k, v in values.items() if v is not None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summary(
    iteration: int, rows: list[LayerRecord], findings: list[Finding]
) -> str:
    """Return a line that says whether it works, for the log."""
    states = Counter(row.state for row in rows)
    groups = Counter(
        row.ranks_per_group for row in rows if row.state == 'synced'
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
        f'{levels[level]} {level}(s)' for level in LEVELS[:2] if levels[level]
    )
    return f'{text}; verdict: {verdict or "sound"}.'
